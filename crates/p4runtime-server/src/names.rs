//! Objects of P4Info by their names, of which the end may stand for the whole.

use millstream_p4runtime::proto::config::v1::{
    Action, ActionProfile, Counter, DirectCounter, Meter, P4Info, Preamble, Register, Table,
};

/// An object of P4Info.
pub(crate) trait NamedObject {
    /// Kind of the object, for messages.
    const KIND: &'static str;
    /// Name and id.
    fn preamble(&self) -> Option<&Preamble>;
}

macro_rules! named {
    ($($kind:ty: $text:literal),* $(,)?) => {
        $(impl NamedObject for $kind {
            const KIND: &'static str = $text;
            fn preamble(&self) -> Option<&Preamble> {
                self.preamble.as_ref()
            }
        })*
    };
}

named! {
    Table: "table",
    Action: "action",
    ActionProfile: "action profile",
    Counter: "counter",
    DirectCounter: "direct counter",
    Meter: "meter",
    Register: "register",
}

/// Name of an object.
pub(crate) fn name_of<T: NamedObject>(object: &T) -> &str {
    object.preamble().map_or("", |preamble| preamble.name.as_str())
}

/// Id of an object.
pub(crate) fn id_of<T: NamedObject>(object: &T) -> u32 {
    object.preamble().map_or(0, |preamble| preamble.id)
}

/// Finds the object of a name, or the one whose name ends with it at a dot.
pub(crate) fn find<'i, T: NamedObject>(objects: &'i [T], wanted: &str) -> Result<&'i T, String> {
    if let Some(found) = objects.iter().find(|object| name_of(*object) == wanted) {
        return Ok(found);
    }
    let ending = format!(".{wanted}");
    let mut found = objects.iter().filter(|object| name_of(*object).ends_with(&ending));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (None, _) => Err(format!("there is no {} `{wanted}`", T::KIND)),
        (Some(_), Some(_)) => Err(format!("`{wanted}` may stand for several names: give more of it")),
    }
}

/// Finds an action of a table.
pub(crate) fn find_action<'i>(info: &'i P4Info, table: &Table, wanted: &str) -> Result<&'i Action, String> {
    let is_own = |action: &Action| table.action_refs.iter().any(|reference| reference.id == id_of(action));
    let ending = format!(".{wanted}");
    let own = || info.actions.iter().filter(|action| is_own(action));
    let exact = own().find(|action| name_of(*action) == wanted);
    let found = exact.or_else(|| own().find(|action| name_of(*action).ends_with(&ending)));
    found.ok_or_else(|| format!("the table `{}` has no action `{wanted}`", name_of(table)))
}
