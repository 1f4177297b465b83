//! Where a task over many inputs reads and writes: files that it has listed, or what was sent.

use accel::EngineChoice;
use storage::{Input, InputError, Listed, Output, OutputError, SharedDir};
use stream::{
    Direct, Kernel, KernelError, Options, Plan, PlanError, Progress, StreamError, plan_shares,
};

use super::super::remote::around;
use super::Joined;

/// What a session has of its task.
pub(in super::super) struct ManyPlaces<'t> {
    pub(in super::super) inputs: Inputs<'t>,
    /// It computes nothing before it has joined.
    pub(in super::super) joined: Option<&'t Joined>,
    pub(in super::super) outputs: Option<&'t SharedDir>,
    /// What all are called together.
    pub(in super::super) names: &'t str,
    pub(in super::super) options: Options,
    pub(in super::super) plan: &'t Plan,
    pub(in super::super) progress: &'t Progress,
}

/// Where inputs are.
pub(in super::super) enum Inputs<'t> {
    Listed(&'t [Listed]),
    /// One after the other in a single file in memory: an input is a part of it, so that it costs
    /// no descriptor and no copy. This process may know them too.
    Sent(Box<Input>, Option<&'t [Listed]>),
    /// They were not sent either.
    Nowhere,
}

/// An input, its output, how it is streamed, and its units.
pub(super) struct Opened {
    pub(super) input: Input,
    pub(super) output: Option<Output>,
    pub(super) options: Options,
    pub(super) units: u64,
}

/// What an input is called where it was sent to: its manager has the name.
pub(super) fn name_if_sent(number: usize) -> String {
    format!("(input {} of those sent)", number + 1)
}

/// What an output is called that has no name yet.
pub(super) fn output_of(input: &str) -> String {
    format!("the output for {input}")
}

/// Opens what was listed, if it is that still.
pub(super) fn open(listed: &Listed) -> Result<Input, InputError> {
    let input = Input::open(listed.path())?;
    if input.len_bytes() != listed.len_bytes() || input.modified() != listed.modified() {
        let what = "it was written since it was listed".to_owned();
        return Err(InputError::changed(input.name(), what));
    }
    Ok(input)
}

impl<'t> Inputs<'t> {
    pub(in super::super) fn sent(sent: Option<Input>, listed: Option<&'t [Listed]>) -> Self {
        sent.map_or(Self::Nowhere, |sent| Self::Sent(Box::new(sent), listed))
    }
}

impl ManyPlaces<'_> {
    pub(super) fn name(&self, number: usize) -> String {
        let listed = match &self.inputs {
            Inputs::Listed(listed) | Inputs::Sent(_, Some(listed)) => listed.get(number),
            Inputs::Sent(_, None) | Inputs::Nowhere => None,
        };
        listed.map_or_else(|| name_if_sent(number), Listed::shown)
    }

    fn input<K: Kernel>(&self, kernel: &K, number: usize) -> Result<Input, StreamError> {
        let nowhere = || {
            let why = format!("{} was neither opened nor sent", self.name(number));
            StreamError::from(PlanError::Shares { why, cure: "this is a bug in Cellway" })
        };
        match &self.inputs {
            Inputs::Listed(listed) => Ok(open(listed.get(number).ok_or_else(nowhere)?)?),
            Inputs::Sent(all, _) => {
                let Joined { units, around: sent, .. } = self.joined.ok_or_else(nowhere)?;
                let range = units.bytes_of(number);
                let input = all.part(&self.name(number), range.clone());
                let refused = |error| StreamError::Kernel { input: input.name().to_owned(), error };
                let wanted = around(kernel, range.end - range.start).map_err(refused)?;
                if wanted.0 > sent.0 || wanted.1 > sent.1 {
                    let what = "more is to be seen around blocks than of the longest input";
                    let cure = "let nodes read for themselves: --ship locators";
                    return Err(refused(KernelError::new(what, cure)));
                }
                Ok(input)
            }
            Inputs::Nowhere => Err(nowhere()),
        }
    }

    fn output(&self, number: usize) -> Result<Option<Output>, OutputError> {
        let Some(outputs) = self.outputs else { return Ok(None) };
        outputs.open(number as u64, &output_of(&self.name(number))).map(Some)
    }

    /// Opens an input and its output.
    pub(super) fn open<K: Kernel>(
        &self,
        kernel: &K,
        number: usize,
        is_large: bool,
    ) -> Result<Opened, StreamError> {
        let input = self.input(kernel, number)?;
        let mut options = self.options.clone();
        let unit_bytes = self.joined.map(|joined| joined.units.unit_bytes());
        let unit_bytes = unit_bytes.unwrap_or(self.plan.block_bytes);
        options.block_bytes = Some(unit_bytes);
        if matches!(self.inputs, Inputs::Sent(..)) {
            // In memory there is no cache to bypass.
            options.direct = Direct::Off;
        }
        if !is_large {
            (options.accelerators, options.threads) = (Some(1), Some(1));
            if options.engine == EngineChoice::Auto {
                // Nothing overlaps, and this one costs nothing to set up.
                options.engine = EngineChoice::Pread;
            }
        }
        let output = self.output(number)?;
        let plan = plan_shares(kernel, &input, output.as_ref(), &options)?;
        if plan.block_bytes != unit_bytes {
            let why = format!("{} is cut by {} bytes", input.name(), plan.block_bytes);
            let cure = "give --block a multiple of that and of the others";
            return Err(PlanError::Shares { why, cure }.into());
        }
        Ok(Opened { input, output, options, units: plan.units.unwrap_or(0) })
    }
}
