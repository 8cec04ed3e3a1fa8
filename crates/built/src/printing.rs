//! Lines that elements print, on standard error and in files.
//!
//! A line is one write, so that the lines of several workers do not mix. Output that cannot be written to
//! standard error is lost, as in Click.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::sync::{Arc, Mutex, RwLock};

use millstream_click::{ClickProgram, PRINTS, PacketPrinter, chatter, printed};
use millstream_native::RecordListener;

/// Outputs of a configuration's printing elements.
#[derive(Default)]
pub struct PrintOutput(RwLock<OpenOutputs>);

#[derive(Default)]
struct OpenOutputs {
    printers: Vec<PacketPrinter>,
    files: BTreeMap<String, Mutex<BufWriter<Box<dyn Write + Send>>>>,
}

impl PrintOutput {
    /// Opens the files that elements print to.
    ///
    /// # Errors
    /// If one cannot be written, with its name.
    pub fn open(program: &ClickProgram) -> io::Result<Arc<PrintOutput>> {
        let printing = Arc::new(PrintOutput::default());
        printing.replace(program)?;
        Ok(printing)
    }

    /// Switches to another configuration: files of the same names stay open.
    ///
    /// # Errors
    /// As for [`PrintOutput::open`].
    pub fn replace<'p>(&self, program: &'p ClickProgram) -> io::Result<()> {
        let mut open = self.0.write().map_err(|_| failed())?;
        let named = |printer: &'p PacketPrinter| Some((printer.file.as_ref()?, &printer.header));
        for (name, header) in program.printers.iter().filter_map(named) {
            if !open.files.contains_key(name) {
                let named = |e: io::Error| io::Error::new(e.kind(), format!("{name}: {e}"));
                #[expect(
                    clippy::disallowed_methods,
                    reason = "errors are returned, and `finish` reports them"
                )]
                let mut file: BufWriter<Box<dyn Write + Send>> = BufWriter::new(match name.as_str() {
                    "-" => Box::new(io::stdout()),
                    _ => Box::new(File::create(name).map_err(named)?),
                });
                file.write_all(header.as_bytes()).map_err(named)?;
                open.files.insert(name.clone(), Mutex::new(file));
            }
        }
        open.printers.clone_from(&program.printers);
        Ok(())
    }

    /// Listener for the records of an engine.
    pub fn listener(self: &Arc<Self>) -> RecordListener {
        let this = Arc::clone(self);
        RecordListener {
            map: PRINTS.to_owned(),
            take: Arc::new(move |record, time| this.print(record, time)),
        }
    }

    fn print(&self, record: &[u8], time: u64) {
        let Ok(open) = self.0.read() else { return };
        let Some((printer, mut text)) = printed(&open.printers, record, time) else { return };
        let file = printer.file.as_ref().and_then(|name| open.files.get(name));
        match (&printer.file, file.map(|file| file.lock())) {
            (Some(_), Some(Ok(mut file))) => {
                text.push(b'\n');
                // `finish` reports a failure.
                let _ = file.write_all(&text);
            }
            (Some(_), _) => {}
            // Click's elements print here, too; a failure is ignored.
            #[allow(clippy::disallowed_methods)]
            (None, _) => {
                let _ = io::stderr().lock().write_all(&chatter(&text));
            }
        }
    }

    /// Flushes buffered output to files.
    ///
    /// # Errors
    /// If that cannot be written.
    pub fn finish(&self) -> io::Result<()> {
        let open = self.0.read().map_err(|_| failed())?;
        open.files.values().try_for_each(|file| file.lock().map_err(|_| failed())?.flush())
    }
}

fn failed() -> io::Error {
    io::Error::other("a worker has failed")
}
