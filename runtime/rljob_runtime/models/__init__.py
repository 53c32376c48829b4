"""Language models: single-device code, loading and saving in Hugging Face's format."""
