// Plain against speculative on one prompt, in pairs that take turns in going first. Each answer runs alone; while the
// first pair's speculative one runs, plain is replayed at its real pace.

// 97.5 % points of Student's t, by degrees of freedom from 1 on.
const STUDENT = [12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262];

// The geometric mean of ratios and its 95 % interval; one alone has none.
function interval(ratios) {
  const logs = ratios.map(Math.log), n = logs.length, mean = logs.reduce((sum, one) => sum + one, 0) / n;
  if (n < 2) return { mean: Math.exp(mean), low: null, high: null };
  const deviation = Math.sqrt(logs.reduce((sum, one) => sum + (one - mean) ** 2, 0) / (n - 1));
  const reach = (STUDENT[n - 2] * deviation) / Math.sqrt(n);
  return { mean: Math.exp(mean), low: Math.exp(mean - reach), high: Math.exp(mean + reach) };
}

const race = {
  running: null,

  stop() { if (this.running) this.running.abort(); },

  lane(id, total) {
    const lane = byId(id), box = lane.querySelector(".answer");
    lane.classList.remove("won");
    box.replaceChildren();
    const show = (count, ms, tpot) => {
      lane.querySelector(".bar i").style.width = Math.min(100, (100 * count) / total) + "%";
      lane.querySelector(".numbers").textContent = `${count} tokens · ${(ms / 1e3).toFixed(2)} s` + (tpot ? ` · ${tpot.toFixed(1)} ms per token` : "");
      lane.scrollTop = lane.scrollHeight;
    };
    show(0, 0, null);
    return { lane, box, show };
  },

  async run(speculate, total, messages) {
    const view = this.lane(speculate ? "lane-spec" : "lane-plain", total), answer = new Answer(view.box);
    if (speculate) rounds.clear();
    const usage = await streamChat({ messages, temperature: 0, max_completion_tokens: total, speculate }, this.running.signal, (choice, at) => {
      answer.add(choice, at);
      view.show(answer.count, at, answer.tpot);
      if (speculate) { rounds.add(choice.trace.trees); showCounters(answer); }
    });
    answer.finish(usage);
    view.show(answer.count, answer.last, answer.tpot);
    return answer;
  },

  // What was recorded, at the pace at which it came; ends early if `over()`.
  replay(total, recorded, over) {
    const view = this.lane("lane-plain", total), again = new Answer(view.box), begun = performance.now();
    let next = 0, count = 0;
    return new Promise((resolve) => {
      const tick = () => {
        const now = performance.now() - begun;
        while (next < recorded.record.length && (over() || recorded.record[next][0] <= now)) {
          const pieces = recorded.record[next++][1];
          again.show(pieces);
          count += pieces.length;
        }
        if (next < recorded.record.length) { view.show(count, now, null); requestAnimationFrame(tick); return; }
        view.show(recorded.count, recorded.last, recorded.tpot);
        resolve();
      };
      tick();
    });
  },

  async pair(number, total, messages) {
    if (number % 2) {
      const spec = await this.run(true, total, messages);
      return { plain: await this.run(false, total, messages), spec };
    }
    const plain = await this.run(false, total, messages);
    if (number) return { plain, spec: await this.run(true, total, messages) };
    const { signal } = this.running, replayed = this.replay(total, plain, () => signal.aborted);
    const spec = await this.run(true, total, messages);
    await replayed;
    return { plain, spec };
  },

  // The sentence, and the card beside the tree: of the last race alone.
  verdict(pairs) {
    const { mean, low, high } = interval(pairs.map(({ plain, spec }) => plain.tpot / spec.tpot));
    const same = pairs.every(({ plain, spec }) => plain.text === spec.text), { plain, spec } = pairs.at(-1);
    byId("lane-spec").classList.toggle("won", (low ?? mean) > 1); // a tie if the interval holds 1
    byId("lane-plain").classList.toggle("won", (high ?? mean) < 1);
    const sure = low === null ? "" : ` (95 %: ${low.toFixed(2)} to ${high.toFixed(2)}, ${pairs.length} pairs)`;
    byId("speedup").textContent = mean.toFixed(2);
    byId("baseline").textContent = "× in the last race" + (low === null ? "" : `, ${low.toFixed(2)} to ${high.toFixed(2)}`);
    return `${mean.toFixed(2)}×${sure}: speculative took ${spec.tpot.toFixed(1)} ms per token in the last pair, plain ${plain.tpot.toFixed(1)}, ` +
      `with ${same ? "the same text" : "another text (rounding of near-ties)"} and tau ${spec.tau.toFixed(2)}.`;
  },

  async start() {
    const question = byId("race-question").value.trim(), total = Number(byId("race-tokens").value), wanted = Number(byId("race-pairs").value);
    if (this.running || chat.running || !question || !byId("race-form").reportValidity()) return;
    this.running = new AbortController();
    const verdict = byId("verdict"), pairs = [], messages = [{ role: "user", content: question }];
    byId("race-start").disabled = true; byId("race-stop").disabled = false;
    verdict.classList.remove("error");
    try {
      for (let number = 0; number < wanted; number++) {
        verdict.textContent = `Pair ${number + 1} of ${wanted}: ${number % 2 ? "speculative" : "plain"} goes first…`;
        const pair = await this.pair(number, total, messages);
        showCounters(pair.spec);
        if (!pair.plain.tpot || !pair.spec.tpot) { verdict.textContent = "An answer of a single token has no time per token: nothing to compare."; return; }
        pairs.push(pair);
      }
      verdict.textContent = this.verdict(pairs);
    } catch (error) {
      verdict.textContent = inWords(error);
      verdict.classList.toggle("error", error.name !== "AbortError");
    } finally {
      this.running = null;
      byId("race-start").disabled = false; byId("race-stop").disabled = true;
    }
  },
};
