//! A small decoder with a cache of keys and values.

use graphc::frontend::tensor::{AttentionOptions, InputSpec, Tensor, TensorError, scaled_dot_product_attention, trace};
use graphc::frontend::{DType, Shape, shape};
use graphc::ir::{Graph, HostTensor};

/// How large it is.
#[derive(Clone, Copy, Debug)]
pub struct Decoder {
    pub layers: usize,
    pub heads: i64,
    pub width: i64,
    /// Positions that the cache has room for.
    pub capacity: i64,
}

/// Numbers that look random and are the same each time.
pub fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 - 0.5
    };
    (0..count).map(|_| next()).collect()
}

impl Decoder {
    /// Links of state: each cache and its next value.
    pub fn links(&self) -> Vec<(String, String)> {
        let names = (0..self.layers).flat_map(|layer| [format!("keys{layer}"), format!("values{layer}")]);
        names.map(|name| (name.clone(), format!("{name}_next"))).collect()
    }

    /// The shape of a cache.
    pub fn cache(&self) -> [usize; 4] {
        [1, self.heads, self.capacity, self.width / self.heads].map(|d| d as usize)
    }

    /// One step: from `x` `[1, 1, width]` and the caches, with `position` `[1]`, to `y` and the next caches.
    ///
    /// # Errors
    /// As [`trace`].
    pub fn graph(&self) -> Result<Graph, TensorError> {
        let Decoder {
            heads, width, capacity, ..
        } = *self;
        let size = width / heads;
        let matrix = |seed: usize| {
            let n = (width * width) as usize;
            let scale = 2.0 / (width as f32).sqrt();
            let values: Vec<f32> = numbers(n, seed as u32 + 1).iter().map(|v| v * scale).collect();
            Tensor::from_slice(&values, [width as usize, width as usize])
        };
        let caches: Vec<Tensor> = self
            .links()
            .iter()
            .map(|(name, _)| Tensor::input(name, DType::F32, shape![1, heads, capacity, size]))
            .collect();
        let inputs = [
            InputSpec::new("x", DType::F32, shape![1, 1, width]),
            InputSpec::new("position", DType::I64, shape![1]),
        ];
        trace("decoder", inputs, |[x, position]| {
            let scalar = position.reshape(shape![1, 1, 1, 1]);
            let row: Shape = shape![1, heads, 1, size];
            let at = scalar.expand(row);
            let seen = Tensor::iota(DType::I64, shape![1, 1, 1, capacity], 3).le(&scalar);
            let options = AttentionOptions {
                mask: Some(seen),
                ..AttentionOptions::default()
            };
            let mut outputs = Vec::new();
            let mut h = x;
            for layer in 0..self.layers {
                let project = |which: usize| h.matmul(&matrix(layer * 8 + which)).split_heads(heads);
                let keys = caches[2 * layer].scatter(2, &at, &project(1));
                let values = caches[2 * layer + 1].scatter(2, &at, &project(2));
                let seen = scaled_dot_product_attention(&project(0), &keys, &values, &options);
                h = &h + seen.merge_heads().matmul(&matrix(layer * 8 + 3));
                h = (&h + h.matmul(&matrix(layer * 8 + 4)).gelu()).layer_norm(None, None, 1e-5);
                outputs.push((format!("keys{layer}_next"), keys));
                outputs.push((format!("values{layer}_next"), values));
            }
            outputs.insert(0, ("y".to_owned(), h));
            outputs
        })
    }

    /// The input of a step.
    ///
    /// # Panics
    /// Never: the numbers are as many as the shape has.
    pub fn step(&self, position: usize) -> (HostTensor, HostTensor) {
        let values = numbers(self.width as usize, 1000 + position as u32);
        let x = HostTensor::from_f32([1, 1, self.width as usize], &values).expect("as many as the shape has");
        let position = HostTensor::from_i64(DType::I64, [1], &[position as i64]).expect("one");
        (x, position)
    }
}
