//! Dense tables keyed by small typed ids.
//!
//! Every entity of the compiler (node, axis, expression, buffer, …) is a `u32` newtype into a [`Table`]. Ids print as
//! they do in the text forms: `n12`, `b3`, `k0`.

use std::fmt;
use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use serde::{Deserialize, Serialize};

/// An id into a [`Table`].
pub trait Entity: Copy + Eq + Ord + std::hash::Hash + fmt::Debug + fmt::Display {
    /// Makes the id of the `index`-th entry.
    fn new(index: usize) -> Self;
    /// Returns the position in the table.
    fn index(self) -> usize;
}

/// Declares entity ids: `entity! { /// doc  pub NodeId = "n" }`.
macro_rules! entity {
    ($($(#[$meta:meta])* pub $name:ident = $prefix:literal),+ $(,)?) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub struct $name(u32);
        impl $crate::entity::Entity for $name {
            fn new(index: usize) -> Self {
                debug_assert!(index < u32::MAX as usize, "tables hold fewer than 2^32 entries");
                $name(index as u32)
            }
            fn index(self) -> usize {
                self.0 as usize
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    )+};
}
pub(crate) use entity;

/// A growable table whose rows are addressed by the id type `K`.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Table<K, V> {
    rows: Vec<V>,
    #[serde(skip)]
    key: PhantomData<K>,
}

impl<K: Entity, V> Table<K, V> {
    /// Makes an empty table.
    pub const fn new() -> Self {
        Table {
            rows: Vec::new(),
            key: PhantomData,
        }
    }

    /// Makes an empty table with room for `n` rows.
    pub fn with_capacity(n: usize) -> Self {
        Table {
            rows: Vec::with_capacity(n),
            key: PhantomData,
        }
    }

    /// Appends a row and returns its id.
    pub fn push(&mut self, value: V) -> K {
        let key = K::new(self.rows.len());
        self.rows.push(value);
        key
    }

    /// Returns the id that the next [`push`](Self::push) will give.
    pub fn next_key(&self) -> K {
        K::new(self.rows.len())
    }

    /// Returns the row, or `None` when the id is from elsewhere.
    pub fn get(&self, key: K) -> Option<&V> {
        self.rows.get(key.index())
    }

    /// Returns how many rows there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Says whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Iterates the ids in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = K> + ExactSizeIterator + use<K, V> {
        (0..self.rows.len()).map(K::new)
    }

    /// Iterates the rows in order.
    pub fn values(&self) -> std::slice::Iter<'_, V> {
        self.rows.iter()
    }

    /// Iterates the rows in order, mutably.
    pub fn values_mut(&mut self) -> std::slice::IterMut<'_, V> {
        self.rows.iter_mut()
    }

    /// Iterates ids and rows in order.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (K, &V)> + ExactSizeIterator {
        self.rows.iter().enumerate().map(|(i, v)| (K::new(i), v))
    }
}

impl<K: Entity, V> Default for Table<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: Entity, V> Index<K> for Table<K, V> {
    type Output = V;
    fn index(&self, key: K) -> &V {
        &self.rows[key.index()]
    }
}

impl<K: Entity, V> IndexMut<K> for Table<K, V> {
    fn index_mut(&mut self, key: K) -> &mut V {
        &mut self.rows[key.index()]
    }
}

impl<K: Entity, V> FromIterator<V> for Table<K, V> {
    fn from_iter<I: IntoIterator<Item = V>>(values: I) -> Self {
        Table {
            rows: values.into_iter().collect(),
            key: PhantomData,
        }
    }
}

impl<K: Entity, V: fmt::Debug> fmt::Debug for Table<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
