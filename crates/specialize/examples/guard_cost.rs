//! Cost of the guard, in nanoseconds: of an update of a watched map, of one that is not watched, and of another
//! system call; without a guard, and with it at each attach point that the kernel permits.
//!
//! On a machine whose clock counts instructions, nanoseconds are instructions. Needs root.

use std::error::Error;
use std::hint::black_box;
use std::os::unix::process::parent_id;

use millstream_isa::MapType;
use millstream_kernel::{KernelMap, MapSpec, UpdateMode, probe};
use millstream_lab::os;
use millstream_specialize::guard::{Guard, GuardHook};

/// Calls of which the mean is taken.
const CALLS: u64 = 1_000;

fn map() -> Result<KernelMap, Box<dyn Error>> {
    let spec = MapSpec {
        name: "cost",
        map_type: MapType::HASH,
        key_size: 4,
        value_size: 8,
        max_entries: 100,
        ..MapSpec::default()
    };
    Ok(KernelMap::create(&spec)?)
}

/// Nanoseconds for an update.
fn update(map: &KernelMap) -> Result<u64, Box<dyn Error>> {
    let start = os::monotonic_ns();
    for value in 0..CALLS {
        map.update(&1u32.to_ne_bytes(), &value.to_ne_bytes(), UpdateMode::Any)?;
    }
    Ok((os::monotonic_ns() - start) / CALLS)
}

fn print(what: &str, [watched, other]: [&KernelMap; 2]) -> Result<(), Box<dyn Error>> {
    update(watched)?;
    let (watched, other) = (update(watched)?, update(other)?);
    let start = os::monotonic_ns();
    (0..CALLS).for_each(|_| _ = black_box(parent_id()));
    let call = (os::monotonic_ns() - start) / CALLS;
    println!("{what}: watched {watched} ns, not watched {other} ns, another system call {call} ns");
    Ok(())
}

fn main() -> Result<(), Box<dyn Error>> {
    let (watched, other) = (map()?, map()?);
    print("no guard", [&watched, &other])?;
    for hook in [GuardHook::SystemCalls, GuardHook::Calls] {
        match Guard::attach_at(hook, probe::fetching_atomics().is_yes()) {
            Ok(mut guard) => {
                guard.watch(&watched)?;
                print(&hook.to_string(), [&watched, &other])?;
            }
            Err(why) => println!("{hook}: {why}"),
        }
    }
    Ok(())
}
