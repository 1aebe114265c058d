//! The element types of tensors: ggml's type ids, and how many bytes a block takes.

use std::fmt;

macro_rules! tensor_types {
    ($($name:ident = $id:literal, $text:literal, $block:literal, $bytes:literal;)*) => {
        /// An element type of ggml. Each stands for blocks of [`block`](TensorType::block) elements in
        /// [`block_bytes`](TensorType::block_bytes) bytes; rows are whole numbers of blocks.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[expect(non_camel_case_types, reason = "ggml's own names, by which users know them")]
        pub enum TensorType { $($name),* }

        impl TensorType {
            /// All types, in the order of their ids.
            pub const ALL: &[TensorType] = &[$(TensorType::$name),*];

            /// The number in a file.
            pub fn id(self) -> i32 {
                match self { $(TensorType::$name => $id),* }
            }

            /// ggml's name.
            pub fn name(self) -> &'static str {
                match self { $(TensorType::$name => $text),* }
            }

            /// The elements of a block.
            pub fn block(self) -> u64 {
                match self { $(TensorType::$name => $block),* }
            }

            /// The bytes of a block.
            pub fn block_bytes(self) -> u64 {
                match self { $(TensorType::$name => $bytes),* }
            }
        }
    };
}

// Name, id, text, elements and bytes of a block (ggml.h and ggml-common.h).
tensor_types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q8_1 = 9, "Q8_1", 32, 36;
    Q2_K = 10, "Q2_K", 256, 84;
    Q3_K = 11, "Q3_K", 256, 110;
    Q4_K = 12, "Q4_K", 256, 144;
    Q5_K = 13, "Q5_K", 256, 176;
    Q6_K = 14, "Q6_K", 256, 210;
    Q8_K = 15, "Q8_K", 256, 292;
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    IQ1_S = 19, "IQ1_S", 256, 50;
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    IQ3_S = 21, "IQ3_S", 256, 110;
    IQ2_S = 22, "IQ2_S", 256, 82;
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    IQ1_M = 29, "IQ1_M", 256, 56;
    BF16 = 30, "BF16", 1, 2;
    TQ1_0 = 34, "TQ1_0", 256, 54;
    TQ2_0 = 35, "TQ2_0", 256, 66;
    MXFP4 = 39, "MXFP4", 32, 17;
    NVFP4 = 40, "NVFP4", 64, 36;
    Q1_0 = 41, "Q1_0", 128, 18;
    Q2_0 = 42, "Q2_0", 64, 18;
}

impl TensorType {
    /// The type of a file's number, or why there is none.
    pub fn from_id(id: i32) -> Result<TensorType, String> {
        if let Some(&ty) = TensorType::ALL.iter().find(|ty| ty.id() == id) {
            return Ok(ty);
        }
        Err(match id {
            4 | 5 | 31..=33 | 36..=38 => "which ggml has removed; convert the model again",
            97.. => "which is of the ik_llama.cpp fork, whose types graphc does not read",
            _ => "which graphc does not know; the file may be newer than graphc",
        }
        .to_owned())
    }

    /// Whether a block is one element as it is.
    pub fn is_plain(self) -> bool {
        self.block() == 1
    }

    /// Bytes of a tensor of `elements`, a multiple of the block. None beyond 2^64.
    pub fn bytes_of(self, elements: u64) -> Option<u64> {
        (elements / self.block()).checked_mul(self.block_bytes())
    }

    /// Bits an element, on average.
    pub fn bits(self) -> f64 {
        self.block_bytes() as f64 * 8.0 / self.block() as f64
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of `general.file_type`, which says what most tensors of a file are (`llama_ftype` of llama.h).
pub fn file_type_name(number: u64) -> Option<&'static str> {
    const NAMES: &[(u64, &str)] = &[
        (0, "F32"),
        (1, "F16"),
        (2, "Q4_0"),
        (3, "Q4_1"),
        (7, "Q8_0"),
        (8, "Q5_0"),
        (9, "Q5_1"),
        (10, "Q2_K"),
        (11, "Q3_K_S"),
        (12, "Q3_K_M"),
        (13, "Q3_K_L"),
        (14, "Q4_K_S"),
        (15, "Q4_K_M"),
        (16, "Q5_K_S"),
        (17, "Q5_K_M"),
        (18, "Q6_K"),
        (19, "IQ2_XXS"),
        (20, "IQ2_XS"),
        (21, "Q2_K_S"),
        (22, "IQ3_XS"),
        (23, "IQ3_XXS"),
        (24, "IQ1_S"),
        (25, "IQ4_NL"),
        (26, "IQ3_S"),
        (27, "IQ3_M"),
        (28, "IQ2_S"),
        (29, "IQ2_M"),
        (30, "IQ4_XS"),
        (31, "IQ1_M"),
        (32, "BF16"),
        (36, "TQ1_0"),
        (37, "TQ2_0"),
        (38, "MXFP4_MOE"),
        (39, "NVFP4"),
        (40, "Q1_0"),
        (41, "Q2_0"),
    ];
    NAMES.iter().find(|(id, _)| *id == number).map(|&(_, name)| name)
}
