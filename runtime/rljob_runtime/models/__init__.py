"""Language models as code of one device; loading and saving in Hugging Face's format.

`families` read a config.json, `blocks` are what decoders are built of, `fused` is the decoder that generates.
Called by engines and `parallel.decoder`. Knows no ranks.
"""
