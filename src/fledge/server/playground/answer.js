// One answer while it streams: its coloured tokens, and the counters beside it.

class Answer {
  constructor(box) {
    this.box = box;
    this.text = "";
    this.count = 0;
    this.rounds = 0; // verify forwards: each ends with a token of the target's own
    this.origins = new Map();
    this.first = null;
    this.last = null;
    this.record = []; // [milliseconds, pieces], for the race's replay
    this.stats = null;
  }

  add(choice, at) {
    const pieces = choice.trace.pieces.filter(([text]) => text !== "");
    const fresh = choice.trace.pieces.length - (choice.finish_reason ? 1 : 0);
    this.first ??= at;
    this.last = at;
    this.record.push([at, pieces]);
    for (const [, origin] of choice.trace.pieces.slice(0, fresh)) {
      this.count++;
      this.origins.set(origin, (this.origins.get(origin) || 0) + 1);
      if (origin === 0) this.rounds++;
    }
    this.show(pieces);
  }

  show(pieces) {
    for (const [text, origin] of pieces) {
      const space = text.match(/^\s*/)[0], token = document.createElement("span");
      this.text += text;
      this.box.append(space);
      if (space === text) continue;
      token.textContent = text.slice(space.length);
      token.style.background = originColour(origin);
      token.title = origin ? `accepted draft of depth ${origin}` : "the target's own token";
      token.dataset.origin = origin;
      this.box.append(token);
    }
  }

  finish(usage) { this.stats = usage ? usage.speculation : null; }

  get tpot() {
    if (this.stats && this.stats.tpot_ms) return this.stats.tpot_ms;
    return this.count > 1 ? (this.last - this.first) / (this.count - 1) : null;
  }

  get tau() {
    if (this.stats) return this.stats.tau;
    return this.rounds > 1 ? (this.count - 1) / (this.rounds - 1) : null;
  }
}

function showCounters(answer) {
  const put = (id, value, digits) => { byId(id).textContent = value === null ? "–" : value.toFixed(digits); };
  put("tpot", answer.tpot, 1);
  put("tau", answer.tau, 2);
  byId("count").textContent = answer.count;
  const rows = [...answer.origins.entries()].sort((a, b) => a[0] - b[0]);
  byId("legend").replaceChildren(...rows.map(([origin, count]) => {
    const row = document.createElement("div"), share = (100 * count) / answer.count;
    const chip = document.createElement("span"), meter = document.createElement("span"), number = document.createElement("span");
    chip.className = "chip"; chip.textContent = origin ? `draft, depth ${origin}` : "bonus, the target's"; chip.style.background = originColour(origin);
    meter.className = "meter"; meter.append(document.createElement("i")); meter.firstChild.style.width = share + "%";
    number.className = "share"; number.textContent = share.toFixed(0) + " %";
    row.append(chip, meter, number);
    return row;
  }));
}
