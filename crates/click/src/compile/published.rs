//! Values that elements publish under an element's name, for the code of others: the flows of a rewriter, for
//! instance. The compiler does not know their types.

use std::any::{Any, TypeId};
use std::rc::Rc;

use rustc_hash::FxHashMap;

/// Published values, one of each type for each element.
#[derive(Clone, Default)]
pub(crate) struct PublishedValues(FxHashMap<(String, TypeId), Rc<dyn Any>>);

impl PublishedValues {
    /// Publishes a value under the name of an element. Returns false if there has been one of its type, which
    /// it replaces.
    pub(crate) fn insert<T: 'static>(&mut self, element: &str, value: T) -> bool {
        self.0.insert((element.to_owned(), TypeId::of::<T>()), Rc::new(value)).is_none()
    }

    /// The value of this type that is published under the name of an element.
    pub(crate) fn get<T: Clone + 'static>(&self, element: &str) -> Option<T> {
        self.0.get(&(element.to_owned(), TypeId::of::<T>()))?.downcast_ref().cloned()
    }
}
