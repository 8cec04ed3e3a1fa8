//! Self-description of the running kernel: types, symbols, configuration.
//!
//! Each is read when first asked for and kept for the life of the process: the kernel's BTF is megabytes.

use std::io::Read;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use flate2::read::GzDecoder;
use millstream_btf::Btf;
use rustc_hash::FxHashMap;

use crate::error::Error;

/// The running kernel's types, or another kernel's for preparing without loading.
#[derive(Clone, Debug)]
pub struct KernelTypes {
    btf: Arc<Btf>,
}

/// A kernel's uncompressed configuration is about 200 KiB; more than this is no configuration.
const MAX_CONFIG: u64 = 16 << 20;

impl KernelTypes {
    /// Loads the running kernel's types, from `/sys/kernel/btf/vmlinux`.
    ///
    /// # Errors
    /// If the kernel has no BTF (`CONFIG_DEBUG_INFO_BTF`), or it cannot be read.
    pub fn running() -> Result<Self, Error> {
        static RUNNING: OnceLock<KernelTypes> = OnceLock::new();
        if let Some(types) = RUNNING.get() {
            return Ok(types.clone());
        }
        let types = Self::from_file(Path::new("/sys/kernel/btf/vmlinux"))?;
        Ok(RUNNING.get_or_init(|| types).clone())
    }

    /// Loads another kernel's types, from a file that holds BTF alone.
    ///
    /// # Errors
    /// If it cannot be read, or is not BTF.
    pub fn from_file(path: &Path) -> Result<Self, Error> {
        let name = path.to_string_lossy().into_owned();
        let bytes = std::fs::read(path).map_err(|source| Error::Read { path: name.clone(), source })?;
        let btf = Btf::from_vec(bytes).map_err(|source| Error::Btf { what: name, source })?;
        Ok(KernelTypes::new(btf))
    }

    /// Takes these types as a kernel's.
    pub fn new(btf: Btf) -> Self {
        KernelTypes { btf: Arc::new(btf) }
    }

    /// The types.
    pub fn btf(&self) -> &Btf {
        &self.btf
    }
}

/// Finds the kernel's address of a symbol; `None` if it has none of that name (or hides addresses).
pub(crate) fn symbol(name: &str) -> Result<Option<u64>, Error> {
    const PATH: &str = "/proc/kallsyms";
    static SYMBOLS: OnceLock<FxHashMap<String, u64>> = OnceLock::new();
    let symbols = match SYMBOLS.get() {
        Some(s) => s,
        None => {
            let text = std::fs::read_to_string(PATH)
                .map_err(|source| Error::Read { path: PATH.to_owned(), source })?;
            SYMBOLS.get_or_init(|| parse_symbols(&text))
        }
    };
    Ok(symbols.get(name).copied())
}

/// `ffffffff81000000 T _stext`; the first of a name counts, as for libbpf.
fn parse_symbols(text: &str) -> FxHashMap<String, u64> {
    let mut out = FxHashMap::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let (Some(address), Some(_), Some(name)) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        if let Ok(address) = u64::from_str_radix(address, 16) {
            out.entry(name.to_owned()).or_insert(address);
        }
    }
    out
}

/// The running kernel's configuration: `CONFIG_X` to its value as written.
pub(crate) fn configuration() -> Result<&'static FxHashMap<String, String>, Error> {
    static CONFIG: OnceLock<FxHashMap<String, String>> = OnceLock::new();
    if let Some(c) = CONFIG.get() {
        return Ok(c);
    }
    let boot = format!("/boot/config-{}", release()?);
    let text = match std::fs::read_to_string(&boot) {
        Ok(text) => text,
        Err(_) => packed_configuration()?,
    };
    Ok(CONFIG.get_or_init(|| {
        let pairs = text.lines().filter(|l| l.starts_with("CONFIG_")).filter_map(|l| l.split_once('='));
        pairs.map(|(k, v)| (k.to_owned(), v.trim().to_owned())).collect()
    }))
}

fn packed_configuration() -> Result<String, Error> {
    const PATH: &str = "/proc/config.gz";
    let fail = |source| Error::Read { path: PATH.to_owned(), source };
    let file = std::fs::File::open(PATH).map_err(fail)?;
    let mut text = String::new();
    GzDecoder::new(file).take(MAX_CONFIG).read_to_string(&mut text).map_err(fail)?;
    Ok(text)
}

fn release() -> Result<String, Error> {
    const PATH: &str = "/proc/sys/kernel/osrelease";
    let text =
        std::fs::read_to_string(PATH).map_err(|source| Error::Read { path: PATH.to_owned(), source })?;
    Ok(text.trim().to_owned())
}

/// The kernel's version as `KERNEL_VERSION(major, minor, patch)` computes it.
pub(crate) fn version_code() -> Result<u32, Error> {
    let release = release()?;
    version_of(&release)
        .ok_or_else(|| Error::Setting { name: "LINUX_KERNEL_VERSION".to_owned(), reason: release.clone() })
}

fn version_of(release: &str) -> Option<u32> {
    let mut parts = release.split(['.', '-', '+']).map_while(|p| p.parse::<u32>().ok());
    let (major, minor) = (parts.next()?, parts.next()?);
    Some(major << 16 | minor << 8 | parts.next().unwrap_or(0).min(255))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_coded_as_the_kernel_has_it() {
        assert_eq!(version_of("6.18.44-fc-v669"), Some(6 << 16 | 18 << 8 | 44));
        assert_eq!(version_of("5.10-rc1"), Some(5 << 16 | 10 << 8));
        assert_eq!(version_of("4.19.325"), Some(4 << 16 | 19 << 8 | 255));
        assert_eq!(version_of("next"), None);
    }

    #[test]
    fn the_first_symbol_of_a_name_counts() {
        let s = parse_symbols("0000000000000010 T a\n0000000000000020 t a [module]\nrubbish\n");
        assert_eq!(s.get("a"), Some(&0x10));
        assert_eq!(s.len(), 1);
    }
}
