"""The one round, by two backends; an engine has one of them, chosen when it is built.

rounds.py          `Rounds`: a backend's rounds, and the drafter's bookkeeping between them
torch.py           `TorchRound`, the definition: propose -> verify -> accept -> commit -> follow, in fixed shapes
tree.py            what the target says about a tree, and the accepted path
verifier.py        the target's part of it
result.py          what a round hands to the loop, whichever backend ran it
graphs.py          rounds as CUDA graphs
padding.py         the batch of such rounds: rows behind the running requests
native.py          `NativeRound`: the same in one C++ call, where target and head run on the CPU kernels
native_draft.py    what that call writes about its trees
hooks.py           callbacks from the call into Python: penalties, log probabilities, structured outputs
"""
