use super::{Mutator, measured};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Inputs that are kept for further mutation, at the most.
const POOL: usize = 256;
/// Longest input that is added to a corpus, in bytes.
const CORPUS_FILE: usize = 8192;
/// Files up to which a corpus grows.
const CORPUS_FILES: usize = 32;

/// A search for input that a reader does not survive. Inputs grow to no more than about eight times the
/// longest one that was given.
///
/// | setting | default |
/// |---|---|
/// | cases | 300; as many as there is time for when `SPECDEC_FUZZ_SECONDS` is set |
/// | memory | 64 MiB a case, where the binary has a [`CountingAllocator`](super::CountingAllocator) |
/// | patience | 10 s a case |
/// | seed | 1; the time of day when `SPECDEC_FUZZ_SECONDS` is set |
#[derive(Debug)]
pub struct Campaign {
    name: String,
    inputs: Vec<Vec<u8>>,
    /// Inputs that are given to the reader as they are.
    kept: Vec<(PathBuf, Vec<u8>)>,
    /// Where inputs that are refused for a new reason are added.
    grows: Option<PathBuf>,
    cases: u64,
    time: Option<Duration>,
    memory: usize,
    patience: Duration,
    seed: u64,
}

/// What a campaign did.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CampaignReport {
    /// Its name.
    pub name: String,
    /// Inputs given to the reader.
    pub cases: u64,
    /// Those it accepted.
    pub accepted: u64,
    /// Different reasons it refused the others for, numbers in them left out.
    pub reasons: usize,
    /// Most bytes that a case took, 0 where nobody counts.
    pub memory: usize,
    /// The longest case.
    pub longest: Duration,
}

impl fmt::Display for CampaignReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            cases,
            accepted,
            reasons,
            memory,
            longest,
        } = self;
        write!(
            f,
            "{name}: {cases} cases, {accepted} accepted, {reasons} reasons to refuse, at most {} KiB and {} ms a case",
            memory / 1024,
            longest.as_millis()
        )
    }
}

impl Campaign {
    /// A campaign without inputs.
    pub fn new(name: impl Into<String>) -> Self {
        let time = std::env::var("SPECDEC_FUZZ_SECONDS").ok();
        let time = time.and_then(|s| s.parse().ok().map(Duration::from_secs));
        let clock = || std::time::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_nanos());
        Self {
            name: name.into(),
            inputs: Vec::new(),
            kept: Vec::new(),
            grows: None,
            cases: 300,
            seed: time.map_or(1, |_| clock() as u64),
            time,
            memory: 64 << 20,
            patience: Duration::from_secs(10),
        }
    }

    /// Sets how many cases are tried where there is no time to fill.
    #[must_use]
    pub fn cases(mut self, cases: u64) -> Self {
        self.cases = cases;
        self
    }

    /// Sets the most bytes that a case may take.
    #[must_use]
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory = bytes;
        self
    }

    /// Adds a valid input, to be mutated.
    #[must_use]
    pub fn input(mut self, bytes: Vec<u8>) -> Self {
        self.inputs.push(bytes);
        self
    }

    /// Adds every file of a folder: each is given to the reader as it is, and mutated later. A folder
    /// that does not exist has none. When `SPECDEC_FUZZ_GROW` is set, a short input that is refused for
    /// a reason nothing was refused for before is written there, named after the reason.
    #[must_use]
    pub fn corpus(mut self, folder: impl AsRef<Path>) -> Self {
        if std::env::var_os("SPECDEC_FUZZ_GROW").is_some() {
            self.grows = Some(folder.as_ref().to_owned());
        }
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
        files.sort();
        for path in files {
            if let Ok(bytes) = fs::read(&path) {
                self.inputs.push(bytes.clone());
                self.kept.push((path, bytes));
            }
        }
        self
    }

    /// Mutates inputs and gives them to the reader, which tells why it refuses one.
    ///
    /// # Panics
    /// When the reader panics, takes too much memory or too much time, naming a file that holds the
    /// input. More than four times the memory, or a reader that does not come back, ends the process;
    /// the file of that name then holds the input as well.
    pub fn run(
        self,
        mut mutate: impl FnMut(&mut Mutator, &[u8]) -> Vec<u8>,
        mut read: impl FnMut(&[u8]) -> Result<(), String>,
    ) -> CampaignReport {
        let mut case = Case::new(&self);
        let mut report = CampaignReport {
            name: self.name.clone(),
            cases: 0,
            accepted: 0,
            reasons: 0,
            memory: 0,
            longest: Duration::ZERO,
        };
        let mut reasons = BTreeSet::new();
        for (path, bytes) in &self.kept {
            case.about = format!("{}, as it is", path.display());
            note(case.run(bytes, &mut read), &mut report, &mut reasons);
        }
        let mut mutator = Mutator::new(self.seed);
        let mut pool: Vec<Vec<u8>> = Vec::new();
        // What grows without end would take memory in proportion.
        let longest = self.inputs.iter().map(Vec::len).max().unwrap_or(0);
        let most = 8 * longest + 4096;
        let begun = Instant::now();
        while match self.time {
            Some(time) => begun.elapsed() < time,
            None => report.cases < self.cases,
        } {
            // The valid ones as often as all that came of them.
            let from = match mutator.below(2) {
                0 => &self.inputs,
                _ => &pool,
            };
            let mut bytes = match from.get(mutator.below(from.len())) {
                Some(bytes) => bytes.clone(),
                None => Vec::new(),
            };
            for _ in 0..=mutator.below(3) {
                let changed = mutate(&mut mutator, &bytes);
                if changed.len() <= most {
                    bytes = changed;
                }
            }
            case.about = format!("case {} of seed {}", report.cases, self.seed);
            let outcome = case.run(&bytes, &mut read);
            let refused = outcome.result.as_ref().err().cloned();
            if note(outcome, &mut report, &mut reasons) {
                if let (Some(folder), Some(reason)) = (&self.grows, refused) {
                    keep(folder, &reason, &bytes);
                }
                if pool.len() == POOL {
                    pool.swap_remove(mutator.below(POOL));
                }
                pool.push(bytes);
            }
        }
        report.reasons = reasons.len();
        case.done();
        report
    }
}

/// Takes note of an outcome; whether it is worth mutating further.
fn note(outcome: Outcome, report: &mut CampaignReport, reasons: &mut BTreeSet<String>) -> bool {
    report.cases += 1;
    report.memory = report.memory.max(outcome.memory);
    report.longest = report.longest.max(outcome.time);
    match outcome.result {
        Ok(()) => {
            report.accepted += 1;
            true
        }
        Err(reason) => reasons.insert(kind(&reason)),
    }
}

/// A reason without what is different each time: numbers and quoted words.
fn kind(reason: &str) -> String {
    let mut quoted = false;
    let letters = reason.chars().filter(|c| {
        quoted ^= *c == '"';
        !quoted && !c.is_numeric()
    });
    letters.take(120).collect()
}

/// Writes an input to a corpus, named after the reason it was refused for.
fn keep(folder: &Path, reason: &str, bytes: &[u8]) {
    let files = fs::read_dir(folder).map_or(0, Iterator::count);
    if bytes.len() > CORPUS_FILE || files >= CORPUS_FILES {
        return;
    }
    let kind = kind(reason).to_lowercase();
    // Paths are those of one run.
    let told = kind.split_whitespace().filter(|word| !word.contains('/'));
    let words = told.flat_map(|word| word.split(|c: char| !c.is_ascii_alphabetic()));
    let words: Vec<&str> = words.filter(|word| !word.is_empty()).take(10).collect();
    let path = folder.join(words.join("-"));
    let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, bytes));
    written.unwrap_or_else(|e| panic!("{} cannot be written: {e}", path.display()));
}

struct Outcome {
    result: Result<(), String>,
    memory: usize,
    time: Duration,
}

/// The input under way, in a file that outlives the process, and a watch over the time it takes.
struct Case {
    file: File,
    path: PathBuf,
    about: String,
    memory: usize,
    patience: Duration,
    /// Milliseconds at which the reader is to be back; 0 between cases.
    deadline: Arc<AtomicU64>,
    begun: Instant,
}

impl Case {
    fn new(campaign: &Campaign) -> Self {
        let folder = std::env::temp_dir().join("specdec-hostile");
        let name = format!("{}-{}.input", campaign.name, std::process::id());
        let path = folder.join(name);
        let file = fs::create_dir_all(&folder).and_then(|()| File::create(&path));
        let file = file.unwrap_or_else(|e| panic!("{} cannot be written: {e}", path.display()));
        let (deadline, begun) = (Arc::new(AtomicU64::new(0)), Instant::now());
        let (watched, patience) = (Arc::downgrade(&deadline), campaign.patience);
        std::thread::spawn(move || watch(&watched, begun));
        Self {
            file,
            path,
            about: String::new(),
            memory: campaign.memory,
            patience,
            deadline,
            begun,
        }
    }

    fn run(&mut self, bytes: &[u8], read: &mut impl FnMut(&[u8]) -> Result<(), String>) -> Outcome {
        let written = self
            .file
            .seek(SeekFrom::Start(0))
            .and_then(|_| self.file.write_all(bytes))
            .and_then(|()| self.file.set_len(bytes.len() as u64));
        if let Err(error) = written {
            panic!("{} cannot be written: {error}", self.path.display());
        }
        let begun = self.begun.elapsed();
        let deadline = (begun + 3 * self.patience).as_millis() as u64;
        self.deadline.store(deadline, Ordering::Relaxed);
        let limit = self.memory.saturating_mul(4);
        let (result, memory) = measured(limit, || catch_unwind(AssertUnwindSafe(|| read(bytes))));
        self.deadline.store(0, Ordering::Relaxed);
        let time = self.begun.elapsed() - begun;
        let Ok(result) = result else {
            panic!("it panicked: {}", self.found());
        };
        assert!(time <= self.patience, "it took {time:?}: {}", self.found());
        assert!(
            memory <= self.memory,
            "it took {memory} bytes: {}",
            self.found()
        );
        Outcome {
            result,
            memory,
            time,
        }
    }

    fn found(&self) -> String {
        format!("{}, kept in {}", self.about, self.path.display())
    }

    fn done(self) {
        // An input that did no harm is of no interest.
        let _ = fs::remove_file(&self.path);
    }
}

/// Ends the process when a deadline has passed: a reader that does not come back cannot be stopped.
fn watch(deadline: &Weak<AtomicU64>, begun: Instant) {
    while let Some(deadline) = deadline.upgrade() {
        let deadline = deadline.load(Ordering::Relaxed);
        if deadline > 0 && begun.elapsed().as_millis() as u64 > deadline {
            std::process::abort();
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}
