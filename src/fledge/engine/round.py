"""One decoding round for the running batch: draft, verify, accept, extend. L is a request's committed length.

    draft   -> a tree of at most N nodes per request; node 0, the root, is the token x[L], which is known already
    verify  -> one target forward over all nodes; at each node the target chooses the next token, greedily or by a draw
    accept  -> the path from the root along which every node is what its parent chose; the choice at the path's end
               is the bonus token, the next round's root
    extend  -> the head over the accepted tokens; its hidden state and first-level candidates are carried to the next
               round

               draft window (head)                 verify window (target)          after the round (both)
    index      L ..          L+K ..                L      L+1 ..                   L      L+1    L+2
               level 1 (K)   level 2's best K      root   nodes, parents first     root   accepted path

The planner's `RoundPlan` (`planner/plan.py`) says how large the tree may get. On a CPU it may also stop the tree early,
by the tree's own probabilities. On a GPU the host reads no value: a round is launched, and its result is fetched once.
Accept draws no random numbers: what a node chooses follows from the request's seed and the position (`sampling.py`).

There are three kinds of round: `speculative_round`, `lookup_round` (prompt lookup proposes, the head doesn't run) and
`plain_round`. Where target and head run on the CPU kernels, each is one C++ call with the same result
(`native_round.py`). The torch code below defines what that call does.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from fledge.draft.tree import DraftTree
from fledge.engine import native_tree
from fledge.engine.carried import Carried, RunningBatch
from fledge.engine.forwards import Models, TargetRows, draft_step, run_head, run_head_rows, run_target
from fledge.engine.growth import TreeGrowth
from fledge.engine.guided import GuidedDrafts
from fledge.engine.layout import RowLayout, VerifyLayout
from fledge.engine.logprobs import PathLogprobs, path_logprobs
from fledge.engine.lookup import Proposal, chain, find
from fledge.engine.native_round import DraftInputs, NativeOutcome, NativeRound
from fledge.engine.native_tree import Passed, PathRows
from fledge.engine.outcome import Accepted, Drafted, Drafts, Outcome, PlainOutcome
from fledge.engine.phases import PhaseClock
from fledge.engine.planner.plan import RoundPlan
from fledge.engine.selection import Selection
from fledge.engine.shapes import TreeShape


class Round(NamedTuple):
    """What verify, accept and extend of one round work on."""

    models: Models
    batch: RunningBatch
    now: Carried
    shape: TreeShape
    layout: VerifyLayout
    rows: RowLayout  # of the R rows that are verified
    picked: Tensor | None  # [R] int64, which of the B * N nodes they are; None: all


def speculative_round(models: Models, batch: RunningBatch, plan: RoundPlan, clock: PhaseClock) -> Outcome:
    """Draft, verify, accept, extend."""
    native = models.native
    if native is not None and not batch.selection.wants_logits:
        return _outcome(native.round(DraftInputs.of(batch, plan)), clock)
    return _verify_accept_extend(models, batch, draft(models, batch, plan), clock, follow=True)


def lookup_round(models: Models, batch: RunningBatch, plan: RoundPlan, clock: PhaseClock) -> Outcome | None:
    """A round that verifies prompt lookup's proposals alone; the head doesn't run and falls behind.

    None, with nothing done, if no proposal is worth a row of the verify.
    """
    native = models.native
    if native is not None and not batch.selection.wants_logits:
        return _native_lookup(native, batch, plan, clock)
    now, proposal = batch.view(), _look_up(batch, plan, batch.selection.guided())
    nodes, counts = _sizes(batch, plan, proposal.log_probs.cumsum(1), None)
    if nodes == 1:
        clock.lap("draft")
        return None
    shape = TreeShape(0, 1, nodes, nodes - 1)
    layout = models.layouts.verify(batch.size, nodes, nodes - 1)
    size = counts if counts is not None else torch.full((batch.size,), nodes - 1, device=now.length.device)
    tree = chain(proposal, now.bonus[:, None], layout.node_bit, size)
    return _verify_accept_extend(
        models, batch, Drafted(tree, shape, [], proposal, counts), clock, follow=False
    )


def _native_lookup(
    native: NativeRound, batch: RunningBatch, plan: RoundPlan, clock: PhaseClock
) -> Outcome | None:
    """`lookup_round` in one C++ call."""
    keep = bool(batch.sizes.pending)  # without room to remember, the head is never run
    done = native.lookup(DraftInputs.of(batch, plan), keep=keep)
    if done is None:
        clock.lap("draft")
        return None
    if keep:
        batch.some_behind(done.emitted[:, 0].tolist())
    return _outcome(done, clock)


def _outcome(done: NativeOutcome, clock: PhaseClock) -> Outcome:
    """What a round in one C++ call did; the call has timed its parts."""
    clock.add("draft", done.draft)
    clock.add("verify", done.verify)
    clock.add("accept", done.accept)
    clock.lap("extend")
    drafted = done.drafted
    return Outcome(done.emitted, None, drafted, drafted.shape, done.path, drafted.rows)


def _verify_accept_extend(
    models: Models, batch: RunningBatch, drafted: Drafts, clock: PhaseClock, *, follow: bool
) -> Outcome:
    """Verify, accept, extend. `follow`: the head is run over what was accepted, else it falls behind."""
    tree, shape, ready = drafted.tree, drafted.shape, drafted.ready
    layout, now = models.layouts.verify(batch.size, shape.nodes, shape.reach), batch.view()
    rows, picked = layout.node_rows, None
    if ready is not None:
        rows, picked = _laid_out(rows, ready.row_start, ready.first_row), ready.picked
    elif drafted.counts is not None:
        rows, picked = some_rows(rows, drafted.counts + 1)
    this = Round(models, batch, now, shape, layout, rows, picked)
    clock.lap("draft")
    inputs = ready.inputs if ready is not None else verify_rows(tree, now.length, picked)
    verified = verify(this, tree, inputs)
    clock.lap("verify")
    accepted = accept(tree, verified.chosen, this.layout, batch.speculating().mask)
    selection = batch.selection.selection(shape.nodes)
    logprobs = _logprobs(selection, verified, accepted.path, accepted.emitted, rows)
    batch.selection.count(accepted.emitted, accepted.emits)
    clock.lap("accept")
    if follow:
        extend(this, accepted, verified.features)
    else:
        _fall_behind(this, accepted, verified.features)
    clock.lap("extend")
    emitted = torch.cat((accepted.emits[:, None], accepted.emitted), 1)
    count = batch.size * shape.nodes if picked is None else len(picked)
    return Outcome(emitted, logprobs, drafted, shape, accepted.path, count)


def plain_round(models: Models, batch: RunningBatch, clock: PhaseClock) -> PlainOutcome:
    """One token per request, from the target alone."""
    follow = models.head is not None and batch.speculating().some  # the head has to be able to catch up
    if models.native_plain is not None and not batch.selection.wants_logits:
        emitted, seconds = models.native_plain.plain(batch.view(), batch.selection.drawing(), keep=follow)
        clock.add("verify", seconds)
        if follow:
            batch.one_behind()
        clock.lap("extend")
        return PlainOutcome(emitted, None)
    now, layout = batch.view(), models.layouts.rows(batch.size, 1)
    selection = batch.selection.selection(1)
    rows = run_target(
        models, now, layout, now.bonus, now.length, mask=None, selection=selection, features=follow
    )
    chosen = rows.chosen[:, None]
    logprobs = _logprobs(selection, rows, None, chosen, layout)
    batch.selection.count(chosen, None)
    clock.lap("verify")
    if rows.features is not None:
        batch.fall_behind(Passed(rows.chosen, rows.features, None, now.length, layout.row_start))
    batch.advance(layout.ones, chosen)
    clock.lap("extend")
    return PlainOutcome(torch.cat((layout.ones[:, None], chosen), 1), logprobs)


def draft(models: Models, batch: RunningBatch, plan: RoundPlan) -> Drafts:
    """Grow a tree per request from the carried first level, level by level, with what prompt lookup proposes."""
    now, bound, native = batch.view(), plan.bound, models.native
    guided = batch.selection.guided()
    if native is not None and guided is None:
        return native.draft(DraftInputs.of(batch, plan))
    layout, topk = models.layouts.tree(batch.size, bound), bound.topk
    proposal = _look_up(batch, plan, guided) if bound.lookup else None
    first = now.first_token_ids[:, :topk], now.first_log_probs[:, :topk]
    if guided is not None:
        first = guided.first(now.first_token_ids, now.first_log_probs, topk)
    growth = TreeGrowth(bound, layout, now.bonus[:, None], *first, proposal)
    hidden: Tensor | None = None  # [B * K, H]
    selection = batch.selection.selection(topk)
    for level, offset in enumerate(layout.draft_offset):
        if not plan.goes_deeper(level + 1, growth.open_mass):
            break
        if hidden is None:
            hidden = now.hidden[:, None].expand(-1, topk, -1).reshape(-1, now.hidden.shape[1])
        tokens, mask = growth.frontier_tokens.reshape(-1), growth.frontier_mask.view(-1)
        out = draft_step(
            models,
            now,
            layout.draft_rows,
            tokens,
            level,
            offset,
            mask=mask,
            hidden=hidden,
            topk=topk,
            selection=selection,
        )
        log_probs = out.log_probs if guided is None else guided.kept(out.token_ids, out.log_probs)
        parents = growth.expand(out.token_ids, log_probs)
        if parents is not None:
            if guided is not None:
                guided.descend(parents, growth.frontier_tokens)
            hidden = out.hidden.index_select(0, parents)
    nodes, counts = _sizes(batch, plan, *growth.candidates())
    shape = bound.cut(len(growth.levels), nodes)
    # The first level is carried: extend is going to write the next round's in its place.
    levels = [growth.levels[0].clone(), *growth.levels[1:]]
    return Drafted(growth.select(nodes, counts), shape, levels, proposal, counts)


def _look_up(batch: RunningBatch, plan: RoundPlan, guided: GuidedDrafts | None) -> Proposal:
    """What prompt lookup proposes, and for structured outputs the tokens that the grammar forces."""
    now = batch.view()
    found = find(now.history, now.length, plan.bound.lookup, plan.match_rates.log_rates(now.length.device))
    return found if guided is None else guided.proposal(found)


def _sizes(
    batch: RunningBatch, plan: RoundPlan, scores: Tensor, depths: Tensor | None
) -> tuple[int, Tensor | None]:
    """How many of these candidates the plan wants verified; those of requests that don't speculate count for nothing.

    As `RoundPlan.nodes`.
    """
    speculates = batch.speculating().mask
    if speculates is not None:
        scores = scores.masked_fill(~speculates[:, None], -torch.inf)
    return plan.nodes(scores, depths)


def verify(this: Round, tree: DraftTree, inputs: tuple[Tensor, Tensor, Tensor]) -> TargetRows:
    """One target forward over the trees' nodes; chosen [B, N], features [R, 3 * Ht] kept for extend.

    `inputs`: the rows' tokens, positions and masks.
    """
    shape, picked = this.shape, this.picked
    tokens, positions, mask = inputs
    rows = run_target(
        this.models,
        this.now,
        this.rows,
        tokens,
        positions,
        mask=None if shape.chain else mask,
        selection=this.batch.selection.selection(shape.nodes),
        features=True,
        tree=tree,
        picked=picked,
    )
    chosen = rows.chosen
    if picked is not None:
        chosen = chosen.new_full((this.batch.size * shape.nodes,), -1).index_copy_(0, picked, chosen)
    return rows._replace(chosen=chosen.view(-1, shape.nodes))


def verify_rows(tree: DraftTree, length: Tensor, picked: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [R] int32, positions [R] and masks [R] of the `picked` nodes; None: of all."""
    if native_tree.runs_here(length):
        return native_tree.verify_rows(tree, length, picked)
    tokens = tree.token_ids.clamp(min=0).to(torch.int32).view(-1)  # an empty node is never accepted
    positions, mask = (length[:, None] + tree.depths).view(-1), tree.window_mask.reshape(-1)
    return (tokens, positions, mask) if picked is None else (tokens[picked], positions[picked], mask[picked])


def accept(
    tree: DraftTree, chosen: Tensor, layout: VerifyLayout, speculates: Tensor | None = None
) -> Accepted:
    """The path of nodes that are what their parents chose. `speculates` [B]: which requests take drafts; None: all.

    A node matches if it is the token its parent chose; it is on the path if all of its ancestors match, too. Siblings
    are different tokens, so at most one node per depth is on the path: scattering node numbers by depth yields it.
    """
    width = layout.no_path.shape[1] - 1
    if native_tree.runs_here(chosen):
        return Accepted(*native_tree.accept(tree, chosen, width, speculates))
    matched = tree.token_ids == chosen.gather(1, tree.parents.clamp(min=0))  # [B, N]
    if speculates is not None:
        matched &= speculates[:, None]
    matched[:, 0].fill_(True)
    # [B, 1], bits of the nodes that didn't match
    missing = (~matched * layout.node_bit[: matched.shape[1]]).sum(1, keepdim=True)
    rejected = (tree.window_mask & missing) != 0  # [B, N]
    deepest = tree.depths.masked_fill(rejected, -1).amax(1)  # [B]
    column = tree.depths.masked_fill(rejected, width)
    path = layout.no_path.scatter(1, column, layout.nodes)[:, :width]
    return Accepted(emits=deepest + 1, path=path, emitted=chosen.gather(1, path))


def extend(this: Round, accepted: Accepted, features: Tensor | None) -> None:
    """Make the accepted path part of the committed length: in the target's KV, and by a forward in the head's.

    Head position p takes feature g[p] and token x[p + 1], so the row of a path node takes what the node chose.
    """
    models, batch, now, moves = this.models, this.batch, this.now, not this.shape.chain
    if models.native is not None and features is not None:
        drawing = batch.selection.drawing()
        models.native.extend(now, accepted, this.rows.first_row, features, drawing, move=moves)
        return
    path = path_rows(this, accepted)
    if moves:  # a chain's nodes are where they belong already
        models.decoder.move_kv(models.kv, path.old_slot, path.new_slot)
    if features is not None:
        features = features.index_select(0, path.source)
    rows = this.layout.path_rows._replace(row_start=path.row_start)
    selection = batch.selection.selection(1)
    out = run_head(models, now, rows, path.positions, path.tokens, features, path.last, selection)
    batch.set_first(None, out.token_ids, out.log_probs, out.hidden)
    batch.advance(accepted.emits, accepted.emitted)


def path_rows(this: Round, accepted: Accepted) -> PathRows:
    """What extend needs of the paths; on a CPU no further than each of them goes."""
    now, layout, size, path = this.now, this.layout, this.models.decoder.page_size, accepted.path
    if native_tree.runs_here(path):
        return native_tree.path_rows(accepted, now.length, this.rows.first_row, now.page_table, size)
    rows = layout.path_rows
    index = torch.stack((path, layout.no_path[:, :-1])) + now.length[:, None]  # [2, B, D + 1]: from, to
    page = now.page_table.expand(2, -1, -1).gather(2, index // size)
    move = (page * size + index % size).view(2, -1)
    positions, tokens = (now.length[:, None] + rows.steps).view(-1), accepted.emitted.reshape(-1)
    source = (path + this.rows.first_row_column).reshape(-1)
    if native_tree.reads_are_free(path):
        rows, some = some_rows(rows, accepted.emits)
        positions, tokens, source, move = positions[some], tokens[some], source[some], move[:, some]
    last = rows.first_row + (accepted.emits - 1)  # [B]
    return PathRows(rows.row_start, last, positions, tokens.to(torch.int32), source, *move.unbind())


def _fall_behind(this: Round, accepted: Accepted, features: Tensor | None) -> None:
    """Make an accepted chain part of the committed length; the head will catch up on it later."""
    batch = this.batch
    if features is not None and batch.sizes.pending:  # without room to remember, the head is never run
        path = path_rows(this, accepted)
        tokens = path.tokens.to(torch.int64)
        batch.fall_behind(Passed(tokens, features, path.source, path.positions, path.row_start))
    batch.advance(accepted.emits, accepted.emitted)


def catch_up(models: Models, batch: RunningBatch) -> None:
    """Run the head over the positions that plain rounds left out (see `carried.py`)."""
    behind = batch.behind()
    if behind is None:
        return
    last = behind.row_start[1:] - 1
    out = run_head_rows(models, behind, last)
    batch.set_first(behind.numbers, out.token_ids, out.log_probs, out.hidden)


def some_rows(layout: RowLayout, counts: Tensor) -> tuple[RowLayout, Tensor]:
    """Only the first `counts` [B] of each request's rows: their layout, and which of all rows they are."""
    if native_tree.runs_here(counts):
        start, first, index = native_tree.some_rows(counts, len(layout.steps))
        return _laid_out(layout, start, first), index
    ends = counts.cumsum(0)
    first = ends - counts
    index = (layout.steps < counts[:, None]).view(-1).nonzero()[:, 0]
    start = torch.cat((layout.no_offset[:1], ends.to(torch.int32)))
    return _laid_out(layout, start, first), index


def _laid_out(layout: RowLayout, row_start: Tensor, first_row: Tensor) -> RowLayout:
    return layout._replace(row_start=row_start, first_row=first_row, first_row_column=first_row[:, None])


def _logprobs(
    selection: Selection | None, rows: TargetRows, path: Tensor | None, emitted: Tensor, layout: RowLayout
) -> PathLogprobs | None:
    """Log probabilities of the path's tokens [B, W], for the requests that want them."""
    if selection is None or selection.logprobs is None or rows.logits is None:
        return None
    if path is None:
        return path_logprobs(rows.logits, selection.logprobs, None, emitted)
    # What is beyond a path may be no row, and have chosen no token.
    own = (path + layout.first_row_column).clamp_(max=len(rows.logits) - 1)
    return path_logprobs(rows.logits, selection.logprobs, own, emitted.clamp(min=0))
