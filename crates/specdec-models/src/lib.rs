//! Llama, Qwen2 and Qwen3 targets in Burn for specdec, loaded from GGUF files or Hugging Face folders.
