//! What there is to choose from.

use stream::Effect;

/// What a program shows of a kernel before it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The kernel's name, as [`stream::Kernel::name`] gives it.
    pub name: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// Reduction, transform or rewrite.
    pub effect: Effect,
    /// What it must or may be told.
    pub parameters: &'static [Parameter],
}

/// A kernel's parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// The option's name, without dashes.
    pub name: &'static str,
    /// What to give.
    pub about: &'static str,
    /// Whether the kernel does not work without it.
    pub required: bool,
}

const PATTERN: Parameter = Parameter {
    name: "pattern",
    about: "regular expression (syntax of Rust's crate regex); it matches within lines",
    required: true,
};
const MAX_RECORD: Parameter = Parameter {
    name: "max-record",
    about: "longest line that may lie across the end of a block",
    required: false,
};

/// The kernels of this crate, by name.
pub const CATALOGUE: &[Entry] = &[
    Entry {
        name: "aes128-ecb",
        about: "AES-128 on each 16-byte record by itself; for benchmarks only, it protects nothing",
        effect: Effect::Transform,
        parameters: &[],
    },
    Entry {
        name: "aes256-ctr",
        about: "encrypt or decrypt as `openssl enc -aes-256-ctr -K .. -iv ..`",
        effect: Effect::Transform,
        parameters: &[
            Parameter {
                name: "key-file",
                about: "file with the key: 64 hexadecimal digits or 32 raw bytes",
                required: true,
            },
            Parameter { name: "iv", about: "first counter: 32 hexadecimal digits", required: true },
        ],
    },
    Entry {
        name: "blake3",
        about: "BLAKE3 hash, as b3sum prints it: 64 hexadecimal digits",
        effect: Effect::Reduce,
        parameters: &[],
    },
    Entry {
        name: "count",
        about: "how often a regular expression matches, or in how many lines",
        effect: Effect::Reduce,
        parameters: &[
            PATTERN,
            Parameter {
                name: "lines",
                about: "count lines with a match, as grep -c",
                required: false,
            },
            MAX_RECORD,
        ],
    },
    Entry {
        name: "crc32c",
        about: "Castagnoli checksum: 8 hexadecimal digits",
        effect: Effect::Reduce,
        parameters: &[],
    },
    Entry {
        name: "histogram",
        about: "how often each red, green and blue value occurs in a 24-bit uncompressed BMP",
        effect: Effect::Reduce,
        parameters: &[],
    },
    Entry {
        name: "identity",
        about: "copy; shows what moving the data costs",
        effect: Effect::Transform,
        parameters: &[],
    },
    Entry {
        name: "linreg",
        about: "line of least squares through pairs of numbers, little endian",
        effect: Effect::Reduce,
        parameters: &[Parameter {
            name: "type",
            about: "type of x and of y: u8, i16, f32 or f64",
            required: true,
        }],
    },
    Entry {
        name: "replace",
        about: "each match of a regular expression by a text, as sed s/../../g",
        effect: Effect::Rewrite,
        parameters: &[
            PATTERN,
            Parameter {
                name: "with",
                about: "text to put for each match; $1 and ${name} stand for groups, $$ for a dollar",
                required: true,
            },
            MAX_RECORD,
        ],
    },
    Entry {
        name: "wordcount",
        about: "how often each word occurs, most frequent first",
        effect: Effect::Reduce,
        parameters: &[
            Parameter {
                name: "table-bytes",
                about: "memory for words in all; more words are spilled to temporary files",
                required: false,
            },
            Parameter { name: "top", about: "report only this many words", required: false },
        ],
    },
];
