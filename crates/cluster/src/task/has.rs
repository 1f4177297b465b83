//! What a node says of its tasks when it joins: enough for a manager to refuse one that would
//! compute something else, before it gets work.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

use super::{Description, List, Task, parameters};

/// All that a node says of its tasks has about so many bytes at most.
const SAID_BYTES_MAX: usize = 64 << 10;

/// Of one task, besides text and parameters.
const AROUND_BYTES: usize = 128;

/// A task of a node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Has {
    /// As [`Description::kernel`].
    kernel: String,
    /// As [`Description::parameters`]; none of too many bytes, which are compared when
    /// the node is told of the job.
    parameters: Option<ByteBuf>,
    /// None of a node that does not read for itself.
    input: Option<Seen>,
}

/// An input as a node sees it: as the fields of a [`Description`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Seen {
    input: String,
    body: (u64, u64),
    modified: (i64, i64),
    list: Option<List>,
}

impl Has {
    /// Of a task that is described so, with its input if that counts.
    pub(crate) fn of(description: &Description, with_input: bool) -> Self {
        let Description { kernel, parameters, input, body, modified, list, .. } = description;
        let seen =
            || Seen { input: input.clone(), body: *body, modified: *modified, list: list.clone() };
        Self {
            kernel: kernel.clone(),
            parameters: Some(parameters.clone().into()),
            input: with_input.then(seen),
        }
    }

    /// Why this has no part in a manager's task, whose kernel may take such parameters.
    ///
    /// # Errors
    /// What differs, by its name.
    pub(crate) fn check(
        &self,
        manager: &Description,
        takes: impl FnOnce(&[u8]) -> bool,
    ) -> Result<(), String> {
        let kernel = &manager.kernel;
        if *kernel != self.kernel {
            return differs("kernel", kernel, &self.kernel);
        }
        let theirs = self.parameters.as_ref();
        let different =
            theirs.and_then(|own| parameters::difference(kernel, &manager.parameters, own));
        if let (Some(why), Some(own)) = (different, theirs)
            && !takes(own)
        {
            return Err(why);
        }
        self.input.as_ref().map_or(Ok(()), |seen| seen.check(manager))
    }

    /// Bytes of it, but for the parameters.
    fn bytes(&self) -> usize {
        AROUND_BYTES + self.kernel.len() + self.input.as_ref().map_or(0, |seen| seen.input.len())
    }
}

impl Seen {
    fn check(&self, manager: &Description) -> Result<(), String> {
        let Description { input, body, modified, list, .. } = manager;
        let inputs = |list: &Option<List>| list.as_ref().map_or(1, |list| list.inputs);
        if inputs(list) != inputs(&self.list) {
            return differs("number of inputs", &inputs(list), &inputs(&self.list));
        }
        let digest = |list: &Option<List>| list.as_ref().map(|list| list.digest);
        if digest(list) != digest(&self.list) {
            return Err(format!(
                "{}: not the same names, lengths and times as those of the manager; let all see \
                 the same files",
                self.input
            ));
        }
        if *body != self.body {
            return differs(&format!("length in bytes of {input}"), &body.1, &self.body.1);
        }
        if *modified != self.modified {
            return Err(format!(
                "{} was written at another time than {input} of the manager; let both be the same file",
                self.input
            ));
        }
        Ok(())
    }
}

/// What a node with these says; of very many the first.
pub(crate) fn said(tasks: &[&dyn Task]) -> Vec<Has> {
    let mut left = SAID_BYTES_MAX;
    let said = tasks.iter().map_while(|task| {
        let mut has = task.has();
        left = left.checked_sub(has.bytes())?;
        let parameters = has.parameters.as_ref().map_or(0, |bytes| bytes.len());
        match left.checked_sub(parameters) {
            Some(rest) => left = rest,
            None => has.parameters = None,
        }
        Some(has)
    });
    said.collect()
}

/// Why a node that said so would compute something else than a manager with these.
pub(crate) fn unlike(said: &[Has], tasks: &[&dyn Task]) -> Option<String> {
    let unlike = |(has, task): (&Has, &&dyn Task)| {
        has.check(task.description(), |parameters| task.takes(parameters)).err()
    };
    said.iter().zip(tasks).find_map(unlike)
}

fn differs(what: &str, ours: &dyn fmt::Display, theirs: &dyn fmt::Display) -> Result<(), String> {
    Err(format!(
        "the manager's {what} is {ours}, this node's {theirs}; start all with the same arguments"
    ))
}

#[cfg(test)]
mod tests {
    use kernels::{Count, Counted, Pattern};
    use stream::{Options, Progress};

    use super::*;
    use crate::task::RemoteTask;

    #[test]
    fn what_is_said_is_short_whatever_a_node_has() {
        let progress = Progress::default();
        let count = |pattern: &str| Count::new(Pattern::new(pattern).unwrap(), Counted::Lines);
        let kernels = [count("a"), count(&"b".repeat(SAID_BYTES_MAX)), count("c")];
        let tasks = kernels
            .each_ref()
            .map(|kernel| RemoteTask::new(kernel, "it", &Options::default(), &progress).unwrap());
        let tasks = tasks.each_ref().map(|task| task as &dyn Task);
        let said = super::said(&tasks);
        let has = said.iter().map(|has| has.parameters.is_some()).collect::<Vec<_>>();
        assert_eq!(has, [true, false, true]);
        // What was not said is not compared.
        assert_eq!(unlike(&said, &tasks), None);
        let others = [tasks[0], tasks[0], tasks[0]];
        let why = unlike(&said, &others).unwrap();
        assert!(why.contains("count has other parameters"), "{why}");
        assert_eq!(unlike(&said[..2], &others), None);
        let many: Vec<_> = (0..10_000).map(|_| tasks[0]).collect();
        let all_bytes = postcard::to_stdvec(&super::said(&many)).unwrap().len();
        assert!((1000..=SAID_BYTES_MAX).contains(&all_bytes), "{all_bytes}");
    }
}
