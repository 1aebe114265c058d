//! The scheme by which a layer of a checkpoint was quantised, held against what is stored.

#[cfg(test)]
mod tests;

use ir::DType;

use super::{NnError, Params};
use crate::weights::{LayerScheme, SchemeError, Strategy};

/// A layer's scheme, and the names that errors give.
pub(super) struct Scheme {
    found: Option<LayerScheme>,
    /// The weight's full name.
    tensor: String,
    path: std::path::PathBuf,
}

impl Scheme {
    /// Reads the scheme of a layer of a class; none for random weights and where nothing is said.
    ///
    /// # Errors
    /// A configuration that cannot be read; a scheme that is not known here.
    pub fn of(params: &Params, class: &str) -> Result<Scheme, NnError> {
        let mut scheme = Scheme {
            found: None,
            tensor: params.name("weight"),
            path: params.file(),
        };
        if !params.is_random()
            && let Some(all) = params.quantization()?.compressed
        {
            let found = all.layer(params.path(), class, &scheme.tensor);
            scheme.found = found.map_err(Box::new)?;
            scheme.path = all.path().to_owned();
        }
        Ok(scheme)
    }

    /// Returns how inputs are quantised.
    pub fn inputs(&self) -> Option<crate::weights::Numbers> {
        self.found.and_then(|found| found.inputs)
    }

    /// An error about what is stored, in the file that holds it.
    pub fn wrong(
        &self,
        params: &Params,
        field: &str,
        found: impl Into<String>,
        expected: impl Into<String>,
    ) -> NnError {
        NnError::Scheme(Box::new(SchemeError {
            path: params.file(),
            tensor: self.tensor.clone(),
            field: field.to_owned(),
            found: found.into(),
            expected: expected.into(),
        }))
    }

    /// Checks that a weight of rows of `depth` elements is stored as its scheme has it.
    ///
    /// # Errors
    /// No scale; elements of another type; groups of another size, or that do not divide a row.
    pub fn check_weight(&self, params: &Params, depth: usize) -> Result<(), NnError> {
        let Some(weights) = self.found.and_then(|found| found.weights) else {
            return Ok(());
        };
        let packed = params.contains("weight_packed");
        if !packed && params.contains("weight") {
            let stored = params.stored_type("weight")?;
            let needed = match weights.dtype {
                DType::I4 => None,
                dtype => Some(dtype),
            };
            if stored != needed || needed.is_none() {
                let found = params.view("weight")?.element;
                let expected = match needed {
                    Some(dtype) => format!(
                        "{}: {dtype} is expected, as `save_compressed=True` writes it",
                        self.said()
                    ),
                    None => format!(
                        "{}: `weight_packed` is expected, as `save_compressed=True` writes it",
                        self.said()
                    ),
                };
                return Err(self.wrong(params, "the stored type", found.to_string(), expected));
            }
        }
        if (packed || params.contains("weight")) && !params.contains("weight_scale") {
            let name = params.name("weight_scale");
            let expected = format!(
                "{}: {name:?} is expected; save the model again with its scales, or name the layer under `ignore`",
                self.said()
            );
            return Err(self.wrong(params, "the scale", "missing", expected));
        }
        let Strategy::Group(size) = weights.strategy else {
            return Ok(());
        };
        if !depth.is_multiple_of(size) {
            let expected =
                format!("which does not divide its {depth} inputs; quantise the model again in groups that do");
            return Err(self.wrong(params, "the group", format!("{size} inputs"), expected));
        }
        let scales = params.view("weight_scale")?;
        let groups = scales.dims.get(1).copied().unwrap_or(1);
        if scales.dims.len() != 2 || groups * size != depth {
            let found = format!("{}{:?}", scales.element, scales.dims);
            let expected = format!("{}: {} groups of {size} inputs are expected", self.said(), depth / size);
            return Err(self.wrong(params, "the scale", found, expected));
        }
        Ok(())
    }

    /// Checks that inputs of a convolution have one scale.
    ///
    /// # Errors
    /// A scale for each token, which pixels are not.
    pub fn check_convolution(&self) -> Result<(), NnError> {
        match self.inputs().map(|inputs| inputs.strategy) {
            Some(Strategy::Token) => Err(NnError::Scheme(Box::new(SchemeError {
                path: self.path.clone(),
                tensor: self.tensor.clone(),
                field: "input_activations.strategy".to_owned(),
                found: "\"token\"".to_owned(),
                expected: "\"tensor\" is expected of a convolution; quantise the model again with it".to_owned(),
            }))),
            _ => Ok(()),
        }
    }

    fn said(&self) -> String {
        format!("{} says that the layer is quantised", self.path.display())
    }
}
