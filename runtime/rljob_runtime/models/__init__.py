"""Language models in single-device code, and reading and writing Hugging Face's formats.

`families` read a config.json, `blocks` are what decoders are built of, and `fused` is the decoder that
generates. Engines and `parallel.decoder` call this package, which has no ranks.
"""
