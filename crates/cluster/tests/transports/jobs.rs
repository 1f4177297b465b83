//! Jobs that depend on the results before, between processes of which one has the input.

use std::time::Duration;

use cellway_cluster::NodeId;
use cellway_cluster::drive::{Config, Queue, run_led};
use cellway_cluster::task::{KernelTask, RemoteTask, Task};
use cellway_cluster::transport::Endpoint;
use storage::Input;
use stream::{Block, Effect, Kernel, KernelError, Options, Progress, Saved, Unit};

/// How many bytes are below a threshold.
struct Below(u8);

impl Kernel for Below {
    type Part = u64;
    type Header = ();

    fn name(&self) -> &str {
        "below"
    }

    fn effect(&self) -> Effect {
        Effect::Reduce
    }

    fn part(&self, _accelerators: usize) -> u64 {
        0
    }

    fn block(&self, _: &Unit<'_>, block: Block<'_>, part: &mut u64) -> Result<(), KernelError> {
        *part += block.data.iter().filter(|byte| **byte < self.0).count() as u64;
        Ok(())
    }

    fn merge(&self, part: &mut u64, later: u64) -> Result<(), KernelError> {
        *part += later;
        Ok(())
    }

    fn parameters(&self) -> Result<Vec<u8>, KernelError> {
        Ok(vec![self.0])
    }

    fn with_parameters(&self, parameters: &[u8]) -> Result<Option<Self>, KernelError> {
        let wrong = || KernelError::new("a threshold has one byte", "give one");
        let [threshold] = parameters.try_into().map_err(|_| wrong())?;
        Ok(Some(Self(threshold)))
    }

    fn save(&self, part: &u64, out: &mut Vec<u8>) -> Result<(), KernelError> {
        out.extend(part.to_le_bytes());
        Ok(())
    }

    fn load(&self, saved: &[u8], _accelerators: usize) -> Result<u64, KernelError> {
        Saved::new(saved).u64()
    }
}

const LEN: usize = 500_000;

/// Finds the median of bytes, by halves. Nodes begin with a threshold of their own. One leaves
/// early, which would wait for nobody if that did not end all.
pub(crate) fn run(endpoint: Box<dyn Endpoint>) -> Result<(), String> {
    let (own, progress, mut config) = (endpoint.own().0, Progress::default(), Config::default());
    let options = Options { block_bytes: Some(4096), accelerators: Some(1), ..Options::default() };
    let kernel = Below(own as u8);
    let said = |error: &dyn std::error::Error| error.to_string();
    if own > 0 {
        config.linger = Duration::ZERO;
        let task = RemoteTask::new(&kernel, "it", &options, &progress).unwrap();
        let (ran, led) = run_led(endpoint, &[&task], &config, |_| ()).map_err(|e| said(&e))?;
        assert_eq!((led, ran.unfit), (None, None));
        return ran.farewell.say().map_err(|error| said(&error));
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("in");
    let bytes: Vec<u8> = (0..LEN as u32).map(|n| (n % 251 / 3) as u8).collect();
    std::fs::write(&path, &bytes).unwrap();
    let input = Input::open(&path).unwrap();
    let task = KernelTask::new(&kernel, &input, None, &options, &progress).unwrap();
    let tasks: [&dyn Task; 1] = [&task];
    let lead = |queue: &Queue<'_>| {
        let (mut low, mut high) = (0, u8::MAX);
        while low < high {
            let middle = low + (high - low) / 2;
            let job = queue.submit(0, Some(&[middle + 1])).unwrap();
            let below = task.result(queue.wait(job).unwrap()).unwrap();
            let wanted = bytes.iter().filter(|byte| **byte <= middle).count() as u64;
            assert_eq!(below, wanted, "up to {middle}");
            if below < LEN as u64 / 2 {
                low = middle + 1
            } else {
                high = middle
            }
            queue.leave(NodeId(1));
        }
        low
    };
    let (ran, median) = run_led(endpoint, &tasks, &config, lead).map_err(|e| said(&e))?;
    assert_eq!(median, Some(41));
    ran.farewell.say().map_err(|error| said(&error))
}
