//! Constants of a text: lists, splats, bytes in hexadecimal, random numbers, and those of the table.

use super::filler::{random_into, unhex};
use super::lexer::Kind;
use super::{LARGEST_CONSTANT, Parsed, Parser, Problem};
use crate::data::{HostTensor, Storage};
use crate::graph::{ConstId, Constant};
use crate::types::{Scalar, TensorType};

/// The elements of a constant, as a text gives them.
pub(super) enum Data {
    List(Vec<Scalar>),
    Splat(Scalar),
    Hex(String),
    Random { seed: u64, scale: Scalar },
    Table(ConstId),
}

impl Parser {
    /// What stands after `constant` or `const c0 =`: an optional name, then the data.
    pub(super) fn constant_data(&mut self) -> Parsed<(Option<String>, Data)> {
        let name = match self.kind() {
            Kind::Text(t) => Some(t.clone()),
            _ => None,
        };
        self.at += usize::from(name.is_some());
        let data = match (self.kind().clone(), self.ahead(1).clone()) {
            (Kind::Sign('['), _) => Data::List(self.list(Self::scalar)?),
            (Kind::Word(w), Kind::Text(hex)) if w == "hex" => {
                self.at += 2;
                Data::Hex(hex)
            }
            (Kind::Word(w), Kind::Sign('(')) if w == "splat" => {
                self.at += 2;
                let value = self.scalar()?;
                self.need(')')?;
                Data::Splat(value)
            }
            (Kind::Word(w), Kind::Sign('(')) if w == "random" => {
                self.at += 2;
                self.need_word("seed")?;
                self.need('=')?;
                let seed = self.integer()?;
                let mut scale = Scalar::Float(1.0);
                if self.eat(',') {
                    self.need_word("scale")?;
                    self.need('=')?;
                    scale = self.scalar()?;
                }
                self.need(')')?;
                Data::Random { seed, scale }
            }
            (Kind::Word(w), _) if w == "elided" => return self.error(Problem::Elided),
            (Kind::Word(w), _) if self.constants.contains_key(&w) => {
                self.at += 1;
                Data::Table(self.constants[&w])
            }
            _ => Data::Splat(self.scalar()?),
        };
        Ok((name, data))
    }

    pub(super) fn constant(&self, at: usize, name: Option<String>, data: Data, ty: &TensorType) -> Parsed<Constant> {
        let shape: Option<Vec<usize>> = ty
            .shape
            .iter()
            .map(|d| d.as_const().and_then(|v| usize::try_from(v).ok()))
            .collect();
        let elements = shape
            .as_ref()
            .and_then(|s| s.iter().try_fold(1usize, |n, d| n.checked_mul(*d)))
            .filter(|n| *n <= LARGEST_CONSTANT);
        let (Some(shape), Some(n)) = (shape, elements) else {
            return self.error_at(at, Problem::ConstantType(ty.to_string()));
        };
        let encode = |values: &[Scalar]| crate::graph::print::encode(ty.dtype, values);
        let expected = ty.dtype.bytes_for(n);
        let bytes = match data {
            Data::List(values) if values.len() == n => encode(&values),
            Data::List(values) => {
                return self.error_at(
                    at,
                    Problem::Count {
                        ty: ty.to_string(),
                        expected: n,
                        got: values.len(),
                    },
                );
            }
            Data::Splat(value) => {
                let mut bytes = self.room(at, ty, expected)?;
                // Two elements fill bytes whatever the type.
                let block = encode(&[value; 2]).repeat(1 << 12);
                for filled in (0..expected).step_by(block.len()) {
                    bytes.extend_from_slice(&block[..block.len().min(expected - filled)]);
                }
                if let Some(last) = bytes.last_mut()
                    && ty.dtype.bits() == 4
                    && !n.is_multiple_of(2)
                {
                    *last &= 15;
                }
                bytes
            }
            Data::Random { seed, scale } => {
                let mut bytes = self.room(at, ty, expected)?;
                random_into(&mut bytes, ty.dtype, n, seed, scale);
                bytes
            }
            Data::Hex(hex) => match unhex(&hex).filter(|b| b.len() == expected) {
                Some(bytes) => bytes,
                None => {
                    return self.error_at(
                        at,
                        Problem::Hex {
                            ty: ty.to_string(),
                            expected,
                        },
                    );
                }
            },
            Data::Table(c) => {
                let from = &self.graph.constants[c].tensor.bytes;
                let mut bytes = self.room(at, ty, from.len())?;
                bytes.extend_from_slice(from);
                bytes
            }
        };
        match HostTensor::new(ty.dtype, shape, Storage::new(bytes)) {
            Ok(tensor) => Ok(Constant { name, tensor }),
            Err(e) => self.error_at(
                at,
                Problem::Hex {
                    ty: ty.to_string(),
                    expected: e.expected,
                },
            ),
        }
    }

    /// Makes room for the bytes of a constant.
    fn room(&self, at: usize, ty: &TensorType, bytes: usize) -> Parsed<Vec<u8>> {
        let room = crate::memory::reserve(bytes as u64, || format!("a constant {ty}"));
        room.or_else(|error| self.error_at(at, error.into()))
    }
}
