// Plain against speculative on one prompt. Each runs alone; while speculative runs, plain is replayed at its real pace.

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

  async run(id, total, speculate, messages) {
    const view = this.lane(id, total), answer = new Answer(view.box);
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

  async start() {
    const question = byId("race-question").value.trim(), total = Number(byId("race-tokens").value);
    if (this.running || chat.running || !question) return;
    this.running = new AbortController();
    const { signal } = this.running, verdict = byId("verdict");
    byId("race-start").disabled = true; byId("race-stop").disabled = false;
    const messages = [{ role: "user", content: question }];
    rounds.clear();
    verdict.classList.remove("error");
    try {
      this.lane("lane-spec", total);
      verdict.textContent = "Plain decode runs alone…";
      const plain = await this.run("lane-plain", total, false, messages);
      if (plain.tpot) { server.plainMs = plain.tpot; server.measured = true; }
      verdict.textContent = "Speculative runs now, beside the recording of plain…";
      const replayed = this.replay(total, plain, () => signal.aborted);
      const spec = await this.run("lane-spec", total, true, messages);
      showCounters(spec);
      await replayed;
      if (!plain.tpot || !spec.tpot) { verdict.textContent = "An answer of a single token has no time per token: nothing to compare."; return; }
      const ratio = plain.tpot / spec.tpot, same = plain.text === spec.text;
      byId(ratio >= 1 ? "lane-spec" : "lane-plain").classList.add("won");
      verdict.textContent = `Speculative took ${spec.tpot.toFixed(1)} ms per token, plain ${plain.tpot.toFixed(1)}: ${ratio.toFixed(2)}×, with ${same ? "the same text" : "another text (rounding of near-ties)"} and tau ${spec.tau.toFixed(2)}.`;
    } catch (error) {
      verdict.textContent = error.name === "AbortError" ? "Stopped." : error.message;
      verdict.classList.toggle("error", error.name !== "AbortError");
    } finally {
      this.running = null;
      byId("race-start").disabled = false; byId("race-stop").disabled = true;
    }
  },
};
