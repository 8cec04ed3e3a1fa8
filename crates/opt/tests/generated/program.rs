//! A whole program: functions that call one another, put into the template.

use millstream_object::{FuncId, NewFunction, Object};
use millstream_rng::Rng;

use super::body::{Body, Callee, Flavour, Plan};
use super::state::{Area, Kind, Space};
use super::template::Template;

/// Stack that the kernel gives to all frames of a chain of calls together, in bytes.
const STACK: i32 = 512;
/// Stack that the callers of a function with a tail call may have, in bytes.
const STACK_BEFORE_TAIL_CALL: i32 = 256;

/// A generated object.
pub(crate) struct Generated {
    pub(crate) object: Object,
    pub(crate) flavour: Flavour,
    /// The entry, and the programs that it may tail-call.
    pub(crate) programs: Vec<FuncId>,
}

/// The program of a seed.
pub(crate) fn generate(template: &Template, seed: u64) -> Generated {
    let mut rng = Rng::new(seed);
    let flavour = if rng.below(3) == 0 { Flavour::Tc } else { Flavour::Xdp };
    let mut object = template.object.clone();
    let mut put =
        |func: FuncId, new: NewFunction| object.replace_function(func, new).expect("it fits the template");
    let programs = template.programs[usize::from(flavour == Flavour::Tc)];
    let chained = rng.below(3) == 0;

    // The depth of calls, and the rest of the stack for each function.
    let depth = [0, 1, 1, 2, 2, 3, 4][rng.below(7) as usize];
    let big = rng.below(2) == 0;
    let mut rest = if chained { STACK_BEFORE_TAIL_CALL - 16 } else { STACK };
    let mut share = |rng: &mut Rng, left: i32| {
        let most = (rest - 16 * left).max(16);
        let frame =
            if big { most - 8 * rng.below(4) as i32 } else { 16 + 8 * rng.below((most / 8) as u64) as i32 };
        let frame = frame.clamp(16, most) & !7;
        // The kernel rounds each frame up.
        rest -= (frame + 15) & !15;
        frame
    };
    let frames: Vec<i32> = (0..=depth).map(|n| share(&mut rng, (depth - n) as i32)).collect();

    let whole = rng.below(4) == 0;
    if whole {
        let plan = Plan { args: vec![Kind::ANY; 2], ..plain(16, 6) };
        put(template.shared, Body::generate(&mut rng, &plan, flavour, template.maps));
    }
    let callback = (rng.below(3) == 0).then_some(template.each);
    if callback.is_some() {
        let data = Kind::Pointer(Area::new(Space::Outer, 24));
        let args = vec![Kind::Number(u64::from(u32::MAX)), data];
        let plan = Plan { args, is_callback: true, ..plain(16, 8) };
        put(template.each, Body::generate(&mut rng, &plan, flavour, template.maps));
    }
    let mut callees: Vec<Callee> = Vec::new();
    if whole && frames.len() < 4 {
        let args = vec![Kind::ANY; 2];
        callees.push(Callee { func: template.shared, args, returns: None, moves_packet: false });
    }
    // From the innermost function outwards.
    for level in (0..depth).rev() {
        let args = arguments(&mut rng, frames[level]);
        let of_value = |k: &Kind| k.area().is_some_and(|a| a.space == Space::Value);
        let returns = args.iter().position(of_value).filter(|_| rng.below(2) == 0);
        let has_context = args.contains(&Kind::Context);
        let below_moves = callees.iter().any(|c| c.moves_packet);
        let tail_calls = chained && has_context && rng.below(3) == 0;
        let moves_packet = has_context && rng.below(4) == 0 || below_moves || tail_calls;
        let plan = Plan {
            args: args.clone(),
            returns,
            frame: frames[level + 1],
            callees: callees.clone(),
            callback: callback.filter(|_| level + 1 == depth && frames[level + 1] <= 64),
            tail_calls,
            next_link: 1,
            moves_packet,
            ..plain(0, 4 + rng.below(26) as u32)
        };
        let func = template.subs[level];
        put(func, Body::generate(&mut rng, &plan, flavour, template.maps));
        callees.push(Callee { func, args, returns, moves_packet });
    }
    let entry = Plan {
        args: vec![Kind::Context],
        frame: frames[0],
        callees,
        callback: callback.filter(|_| depth == 0),
        tail_calls: chained,
        moves_packet: true,
        ..plain(0, 10 + rng.below(60) as u32)
    };
    put(programs[0], Body::generate(&mut rng, &entry, flavour, template.maps));
    if chained {
        for (link, func) in programs[1..].iter().enumerate() {
            let plan = Plan {
                args: vec![Kind::Context],
                frame: 8 * (2 + rng.below(40) as i32),
                callees: Vec::new(),
                tail_calls: true,
                next_link: link as i32 + 1,
                moves_packet: true,
                ..plain(0, 5 + rng.below(30) as u32)
            };
            put(*func, Body::generate(&mut rng, &plan, flavour, template.maps));
        }
    }
    let programs = if chained { programs.to_vec() } else { vec![programs[0]] };
    Generated { object, flavour, programs }
}

fn plain(frame: i32, statements: u32) -> Plan {
    Plan {
        args: Vec::new(),
        returns: None,
        frame,
        callees: Vec::new(),
        callback: None,
        is_callback: false,
        tail_calls: false,
        next_link: 0,
        moves_packet: false,
        statements,
    }
}

/// Arguments of a function: mostly addresses in its caller's frame.
fn arguments(rng: &mut Rng, frame: i32) -> Vec<Kind> {
    let count = 1 + rng.below(5) as usize;
    let mut args: Vec<Kind> = Vec::new();
    for _ in 0..count {
        let kind = match rng.below(8) {
            0 if !args.contains(&Kind::Context) => Kind::Context,
            1 if !args.contains(&Kind::Context) => Kind::Context,
            2 => Kind::Pointer(Area::new(Space::Packet, [14, 20, 34][rng.below(3) as usize])),
            3 => Kind::Pointer(Area::new(Space::Value, 48)),
            4 | 5 if frame > 32 => {
                let most = (frame - 24).clamp(8, 64);
                Kind::Pointer(Area::new(Space::Outer, 8 * (1 + rng.below(most as u64 / 8) as i32)))
            }
            6 => Kind::Number(15),
            _ => Kind::ANY,
        };
        args.push(kind);
    }
    args
}
