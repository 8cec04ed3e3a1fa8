//! Numbers of a graph: its state, which each worker has for itself, and its settings, which all workers share.

use millstream_click::{SETTINGS, STATE, SettingValue};
use millstream_native::NativeEngine;

/// The state of all elements: sums over workers.
pub fn state(engine: &mut NativeEngine) -> Vec<u8> {
    let Some(map) = engine.map(STATE) else { return Vec::new() };
    let size = map.spec().value_size as usize;
    let mut all = map.get(&0u32.to_ne_bytes()).unwrap_or_default();
    let others = all.split_off(size.min(all.len()));
    for (at, word) in others.chunks_exact(8).enumerate() {
        let place = (8 * at) % size;
        let sum = number(&all, place as u32).wrapping_add(number(word, 0));
        all[place..place + 8].copy_from_slice(&sum.to_le_bytes());
    }
    all
}

/// Sets the state. With several workers the first worker gets it, and that of the others is zero.
pub fn set_state(engine: &mut NativeEngine, state: &[u8]) {
    let workers = engine.workers();
    let Some(map) = engine.map(STATE) else { return };
    let none = vec![0; state.len()];
    for worker in 0..workers {
        // The array's only entry always exists, so the update cannot fail.
        map.update(&0u32.to_ne_bytes(), if worker == 0 { state } else { &none }, 0, Some(worker));
    }
}

/// A number of the state.
pub fn number(state: &[u8], offset: u32) -> u64 {
    let bytes = state.get(offset as usize..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

/// The settings.
fn settings(engine: &mut NativeEngine) -> Vec<u8> {
    engine.map(SETTINGS).and_then(|map| map.get(&0u32.to_ne_bytes())).unwrap_or_default()
}

/// A number of the settings, which may be negative.
pub fn setting(engine: &mut NativeEngine, offset: u32) -> i64 {
    number(&settings(engine), offset) as i64
}

/// A setting's number.
pub(crate) fn setting_value(engine: &mut NativeEngine, of: SettingValue) -> i64 {
    match of {
        SettingValue::Fixed(value) => value,
        SettingValue::Live(at) => setting(engine, at),
    }
}

/// Sets a number of the settings.
pub fn set_setting(engine: &mut NativeEngine, offset: u32, value: i64) {
    let mut all = settings(engine);
    let at = offset as usize;
    if let (Some(word), Some(map)) = (all.get_mut(at..at + 8), engine.map(SETTINGS)) {
        word.copy_from_slice(&value.to_le_bytes());
        // The array's only entry always exists, so the update cannot fail.
        map.update(&0u32.to_ne_bytes(), &all, 0, None);
    }
}
