//! Changes of a switch with what undoes them.

use millstream_ir::Map;
use millstream_p4_switch::{MirrorTarget, MulticastNode, Switch, SwitchExecutor};
use millstream_p4runtime::entities::{EntityError, ErrorKind};

/// `ENOSPC` and `E2BIG`: a map is full.
const FULL: [i64; 2] = [-28, -7];

/// Former state of a part of the switch.
enum SwitchUndo {
    Value(Map, Vec<u8>, Option<Vec<u8>>),
    Mirror(u64, Option<MirrorTarget>),
    Group(u64, Option<Vec<MulticastNode>>),
}

/// Changes that were made, oldest first.
#[derive(Default)]
pub(crate) struct SwitchJournal {
    undo: Vec<SwitchUndo>,
}

/// Error of a map that refuses a value.
fn refused(error: &millstream_p4_switch::ExecutorError) -> EntityError {
    match error {
        millstream_p4_switch::ExecutorError::Map(number) if FULL.contains(number) => {
            EntityError::new(ErrorKind::ResourceExhausted, "the table is full")
        }
        other => EntityError::invalid(other.to_string()),
    }
}

impl SwitchJournal {
    /// Place in the journal, to which it can be undone.
    pub(crate) fn mark(&self) -> usize {
        self.undo.len()
    }

    /// Sets a value of a map.
    pub(crate) fn set<E: SwitchExecutor>(
        &mut self,
        switch: &mut Switch<E>,
        map: Map,
        key: &[u8],
        value: &[u8],
    ) -> Result<(), EntityError> {
        let old = switch.executor().get(map, key);
        self.replace(switch, map, key, (old, value))
    }

    /// Sets a value of a map whose old one is known.
    pub(crate) fn replace<E: SwitchExecutor>(
        &mut self,
        switch: &mut Switch<E>,
        map: Map,
        key: &[u8],
        (old, value): (Option<Vec<u8>>, &[u8]),
    ) -> Result<(), EntityError> {
        if old.as_deref() == Some(value) {
            return Ok(());
        }
        switch.executor().set(map, key, value).map_err(|error| refused(&error))?;
        self.undo.push(SwitchUndo::Value(map, key.to_vec(), old));
        Ok(())
    }

    /// Removes a value of a map, if there is one.
    pub(crate) fn delete<E: SwitchExecutor>(
        &mut self,
        switch: &mut Switch<E>,
        map: Map,
        key: &[u8],
    ) -> Result<(), EntityError> {
        let Some(old) = switch.executor().get(map, key) else { return Ok(()) };
        switch.executor().delete(map, key).map_err(|error| refused(&error))?;
        self.undo.push(SwitchUndo::Value(map, key.to_vec(), Some(old)));
        Ok(())
    }

    /// Sets or removes a mirror session.
    pub(crate) fn set_mirror<E>(&mut self, switch: &mut Switch<E>, id: u64, target: Option<MirrorTarget>) {
        let old = match target {
            Some(target) => switch.mirrors.insert(id, target),
            None => switch.mirrors.remove(&id),
        };
        self.undo.push(SwitchUndo::Mirror(id, old));
    }

    /// Sets or removes a multicast group.
    pub(crate) fn set_group<E>(
        &mut self,
        switch: &mut Switch<E>,
        id: u64,
        nodes: Option<Vec<MulticastNode>>,
    ) {
        let old = match nodes {
            Some(nodes) => switch.groups.insert(id, nodes),
            None => switch.groups.remove(&id),
        };
        self.undo.push(SwitchUndo::Group(id, old));
    }

    /// Undoes all changes behind a mark, newest first. A value that was there fits again.
    pub(crate) fn undo_to<E: SwitchExecutor>(&mut self, switch: &mut Switch<E>, mark: usize) {
        while self.undo.len() > mark {
            let undone = match self.undo.pop() {
                Some(SwitchUndo::Value(map, key, Some(old))) => switch.executor().set(map, &key, &old),
                Some(SwitchUndo::Value(map, key, None)) => switch.executor().delete(map, &key),
                Some(SwitchUndo::Mirror(id, Some(old))) => {
                    switch.mirrors.insert(id, old);
                    Ok(())
                }
                Some(SwitchUndo::Mirror(id, None)) => {
                    switch.mirrors.remove(&id);
                    Ok(())
                }
                Some(SwitchUndo::Group(id, Some(old))) => {
                    switch.groups.insert(id, old);
                    Ok(())
                }
                Some(SwitchUndo::Group(id, None)) => {
                    switch.groups.remove(&id);
                    Ok(())
                }
                None => Ok(()),
            };
            if let Err(error) = undone {
                tracing::warn!("a change could not be taken back: {error}");
            }
        }
    }
}
