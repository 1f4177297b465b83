//! Programs that must not compile, each after its like that does: what differs
//! is what is wrong. Only documentation tests see this module.

/// A buffer stays on its accelerator; its bytes may go anywhere.
///
/// ```
/// let store = cellway_accel::LocalStore::new(4096)?;
/// let buf = store.alloc(100)?;
/// let bytes = buf.to_vec();
/// std::thread::spawn(move || drop(bytes));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
/// ```compile_fail,E0277
/// let store = cellway_accel::LocalStore::new(4096)?;
/// let buf = store.alloc(100)?;
/// std::thread::spawn(move || drop(buf));
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// ```
pub struct BufOnAnotherThread;

/// So does the handle to an accelerator.
///
/// ```
/// use cellway_accel::{Config, run};
/// run(&Config::default(), |cx, _| async move {
///     let number = cx.accelerator();
///     std::thread::spawn(move || drop(number));
/// })?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
/// ```compile_fail,E0277
/// use cellway_accel::{Config, run};
/// run(&Config::default(), |cx, _| async move {
///     std::thread::spawn(move || drop(cx));
/// })?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
pub struct CxOnAnotherThread;

/// The host is one thread of those that are counted to see a deadlock.
///
/// ```
/// use cellway_accel::{Config, run_with_host};
/// run_with_host(&Config::default(), |_, _| async {}, |host| {
///     std::thread::scope(|scope| drop(scope.spawn(|| ())));
///     host.signal(0, 1);
/// })?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
/// ```compile_fail,E0277
/// use cellway_accel::{Config, run_with_host};
/// run_with_host(&Config::default(), |_, _| async {}, |host| {
///     std::thread::scope(|scope| drop(scope.spawn(|| host.signal(0, 1))));
/// })?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
pub struct HostOnAnotherThread;

/// A region is lent for the whole run, not for the life of one thread, which
/// may end before its transfers.
///
/// ```
/// use cellway_accel::{Config, Region, Tag, run};
/// let bytes = vec![1; 64];
/// let region = &Region::memory(&bytes);
/// run(&Config::default(), |cx, _| async move {
///     let buf = cx.alloc(64).unwrap();
///     drop(cx.get(buf, region.at(0), 64, Tag::new(0)));
/// })?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
/// ```compile_fail,E0597
/// use cellway_accel::{Config, Region, Tag, run};
/// run(&Config::default(), |cx, _| async move {
///     let bytes = vec![1; 64];
///     let region = &Region::memory(&bytes);
///     let buf = cx.alloc(64).unwrap();
///     drop(cx.get(buf, region.at(0), 64, Tag::new(0)));
/// })?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
pub struct RegionOfOneThread;

/// Bytes are lent for as long as their region is used.
///
/// ```
/// use cellway_accel::Region;
/// let bytes = vec![1; 64];
/// let region = { Region::memory(&bytes) };
/// region.len_bytes();
/// ```
/// ```compile_fail,E0597
/// use cellway_accel::Region;
/// let region = {
///     let bytes = vec![1; 64];
///     Region::memory(&bytes)
/// };
/// region.len_bytes();
/// ```
pub struct BytesShorterThanTheirRegion;

/// The same for an accelerator that is stepped.
///
/// ```
/// use cellway_accel::{Accelerator, Config, Region, Tag};
/// let bytes = vec![1; 64];
/// let region = &Region::memory(&bytes);
/// let mut accelerator = Accelerator::new(&Config::default())?;
/// let cx = accelerator.cx();
/// let get = async move { drop(cx.get(cx.alloc(64).unwrap(), region.at(0), 64, Tag::new(0)).await) };
/// drop(accelerator.cx().spawn(get));
/// accelerator.run_to_end()?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
/// ```compile_fail,E0597
/// use cellway_accel::{Accelerator, Config, Region, Tag};
/// let mut accelerator = Accelerator::new(&Config::default())?;
/// {
///     let bytes = vec![1; 64];
///     let region = &Region::memory(&bytes);
///     let cx = accelerator.cx();
///     let get = async move { drop(cx.get(cx.alloc(64).unwrap(), region.at(0), 64, Tag::new(0)).await) };
///     drop(accelerator.cx().spawn(get));
/// }
/// accelerator.run_to_end()?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
pub struct RegionShorterThanTheRun;

/// What is lent for writing is nobody else's until the run is over.
///
/// ```
/// use cellway_accel::{Config, Region, run};
/// let mut bytes = vec![1; 64];
/// let region = &Region::memory_mut(&mut bytes);
/// run(&Config::default(), |_, _| async move { region.len_bytes() })?;
/// bytes[0] = 2;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
/// ```compile_fail,E0499
/// use cellway_accel::{Config, Region, run};
/// let mut bytes = vec![1; 64];
/// let region = &Region::memory_mut(&mut bytes);
/// bytes[0] = 2;
/// run(&Config::default(), |_, _| async move { region.len_bytes() })?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
pub struct BytesWhileTheyAreLent;

/// A buffer in flight belongs to its transfer, which gives it back.
///
/// ```
/// use cellway_accel::{Config, Region, Tag, run};
/// let bytes = vec![1; 64];
/// let region = &Region::memory(&bytes);
/// run(&Config::default(), |cx, _| async move {
///     let buf = cx.alloc(64).unwrap();
///     let buf = cx.get(buf, region.at(0), 64, Tag::new(0)).await.unwrap();
///     buf[0]
/// })?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
/// ```compile_fail,E0382
/// use cellway_accel::{Config, Region, Tag, run};
/// let bytes = vec![1; 64];
/// let region = &Region::memory(&bytes);
/// run(&Config::default(), |cx, _| async move {
///     let buf = cx.alloc(64).unwrap();
///     let get = cx.get(buf, region.at(0), 64, Tag::new(0));
///     drop(get);
///     buf[0]
/// })?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
pub struct BufInFlight;

/// What a stackful thread may wait with stays on its stack.
///
/// ```
/// use cellway_accel::{Config, run};
/// run(&Config { threads: 1, ..Config::default() }, |cx, _| async move {
///     let thread = cx.spawn_stackful(16 << 10, |sx| sx.free_stack_bytes()).unwrap();
///     thread.await
/// })?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
/// ```compile_fail
/// use cellway_accel::{Config, run};
/// run(&Config { threads: 1, ..Config::default() }, |cx, _| async move {
///     let thread = cx.spawn_stackful(16 << 10, |sx| sx).unwrap();
///     thread.await.free_stack_bytes()
/// })?;
/// # Ok::<_, cellway_accel::RunError>(())
/// ```
pub struct StackCxElsewhere;
