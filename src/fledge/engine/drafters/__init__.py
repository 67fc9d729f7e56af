"""Drafters: whatever proposes tokens for the target to verify.

    drafter.py   what a round asks of one
    eagle.py     the draft head, with prompt lookup merged into its trees; growth.py grows these
    lookup.py    prompt lookup. proposer.py: proposals of one's own beside a head
    proposal.py  what either proposes, and who proposed a token; merge.py merges that into a tree
    guided.py    drafts for structured outputs
    progress.py  how much of a request a drafter has read

A drafter of your own derives from `Drafter`, proposes `Candidates`, and is given to the engine:
`Engine(target, drafter=...)`, or `fledge serve --drafter module:Class`. docs/extend.md has one that runs.
"""
