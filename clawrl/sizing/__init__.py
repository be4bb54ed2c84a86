"""How much memory a model, its cache and its training take, and how much a GPU has. Arithmetic only; nothing is loaded.

`architecture` counts a model's parameters from the shape in its config.json, `known` has that shape for some models,
`lookup` finds it without the network; `gpus` has the GPUs, and `fit` compares the one with the other.
"""
