// The conversation.

const SUGGESTIONS = ["Why is the sky blue?", "What is a binary search?", "Write a short email that asks for a day off."];

// What goes wrong, in words for people.
function inWords(error) {
  if (error.name === "AbortError") return "Stopped.";
  if (error instanceof TypeError) return "The server can't be reached. Is it still running?";
  if (error.status === 401) return "This server wants an API key: enter it at the top of the page.";
  if (error.status === 429 || error.status === 503) return "The server has no room for another request. Try again in a moment.";
  if (error.status >= 500) return `The server failed: ${error.message}`;
  return error.message;
}

// The options that are filled in; what is left empty is the server's to choose.
function sampling() {
  const given = (id) => (byId(id).value.trim() === "" ? undefined : Number(byId(id).value));
  return {
    temperature: given("temperature"), max_completion_tokens: given("tokens"), top_p: given("top-p"), top_k: given("top-k"),
    repetition_penalty: given("repetition"), seed: given("seed"), speculate: byId("speculate").checked,
  };
}

const chat = {
  id: null, messages: [], running: null,

  empty() {
    const box = make("div", { className: "empty" }, "Tokens are coloured by who proposed them: the draft head, by depth, prompt lookup, or the target itself.", make("br"));
    for (const question of SUGGESTIONS) box.append(make("button", { textContent: question, onclick: () => this.ask(question) }));
    byId("log").replaceChildren(box);
  },

  clear() {
    this.open({ id: null, messages: [] });
    byId("question").focus();
  },

  // Shows a conversation that was kept; whose tokens proposed what isn't.
  open({ id, messages }) {
    this.stop();
    [this.id, this.messages] = [id, messages];
    store.write("open", id);
    rounds.clear();
    if (!messages.length) return this.empty();
    byId("log").replaceChildren();
    messages.forEach(({ role, content }, index) => (role === "user" ? this.question(content, index) : this.answered(this.turn(role), content, index)));
  },

  stop() { if (this.running) this.running.abort(); },

  turn(role, ...children) {
    const turn = make("div", { className: "turn " + role }, ...children), log = byId("log");
    log.querySelector(".empty")?.remove();
    log.append(turn);
    log.scrollTop = log.scrollHeight;
    return turn;
  },

  question(text, index) {
    const edit = make("button", { type: "button", className: "small quiet", textContent: "Edit", onclick: () => this.edit(index) });
    this.turn("user", make("div", { className: "said" }, text), make("div", { className: "tools" }, edit, copyButton(() => text)));
  },

  // An answer's last look: formatted if it has a format, and what can be done with it.
  answered(turn, text, index, tokens = null) {
    const tools = make("div", { className: "tools" }), nice = formatted(text);
    turn.querySelector(".note")?.before(tools) ?? turn.append(tools);
    if (!tokens) turn.prepend(nice ?? make("div", { className: "answer" }, text));
    else if (nice) {
      const other = make("button", { type: "button", className: "small quiet", textContent: "Tokens" });
      other.onclick = () => {
        nice.hidden = !nice.hidden; tokens.hidden = !nice.hidden;
        other.textContent = nice.hidden ? "Formatted" : "Tokens";
      };
      tokens.hidden = true;
      tokens.before(nice);
      tools.append(other);
    }
    tools.append(copyButton(() => text), make("button", { type: "button", className: "small quiet", textContent: "Try again", title: "at temperature 0 the answer stays the same", onclick: () => this.again(index) }));
  },

  edit(index) {
    if (this.running) return;
    byId("question").value = this.messages[index].content;
    this.back(index);
    byId("question").focus();
  },

  again(index) {
    if (this.running || race.running) return;
    const question = this.messages[index - 1].content;
    this.back(index - 1);
    this.ask(question);
  },

  // Only the first `count` messages remain; the rest is kept until something is said in its place.
  back(count) {
    const { id } = this;
    this.open({ id, messages: this.messages.slice(0, count) });
  },

  async ask(question) {
    if (this.running || race.running || !question.trim()) return;
    if (!byId("ask").reportValidity()) return;
    store.keepSettings();
    this.running = new AbortController();
    byId("send").disabled = true; byId("stop").disabled = false;
    this.question(question, this.messages.length);
    const box = make("div", { className: "answer" }), note = make("p", { className: "note" }), turn = this.turn("assistant", box, note);
    const answer = new Answer(box), log = byId("log"), system = byId("system").value.trim();
    const asked = [...this.messages, { role: "user", content: question }];
    rounds.clear();
    try {
      const messages = system ? [{ role: "system", content: system }, ...asked] : asked;
      const usage = await streamChat({ messages, ...sampling() }, this.running.signal, (choice, at) => {
        const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
        answer.add(choice, at);
        rounds.add(choice.trace.trees);
        showCounters(answer);
        if (atEnd) log.scrollTop = log.scrollHeight;
      });
      answer.finish(usage);
      note.textContent = `${answer.count} tokens · tau ${answer.tau.toFixed(2)} · ${(answer.tpot || 0).toFixed(1)} ms per token · first after ${answer.first.toFixed(0)} ms`;
    } catch (error) {
      note.textContent = inWords(error);
      if (error.name !== "AbortError") { note.className = "alert"; note.setAttribute("role", "alert"); }
    } finally {
      this.running = null;
      byId("send").disabled = false; byId("stop").disabled = true;
      if (turn.isConnected) this.keep(turn, box, question, asked, answer); // unless it was cleared meanwhile
      if (answer.count) showCounters(answer);
      log.scrollTop = log.scrollHeight;
    }
  },

  keep(turn, box, question, asked, answer) {
    if (!answer.text) { // nothing to go on from: the question can be asked again
      turn.previousElementSibling.querySelector(".tools").remove();
      if (!byId("question").value) byId("question").value = question;
      return;
    }
    this.messages = [...asked, { role: "assistant", content: answer.text }];
    this.id ??= crypto.getRandomValues(new Uint32Array(2)).join("-"); // randomUUID wants HTTPS
    store.keep({ id: this.id, title: this.messages[0].content.slice(0, 80), messages: this.messages });
    this.answered(turn, answer.text, this.messages.length - 1, box);
  },
};

const past = {
  show() {
    const list = byId("conversations"), all = store.conversations;
    list.replaceChildren(...all.map((one) => make("div", { className: "row" },
      make("button", { type: "button", className: "quiet grow", textContent: one.title, onclick: () => { byId("history").hidePopover(); select("chat"); chat.open(one); } }),
      make("button", { type: "button", className: "small quiet", textContent: "Delete", onclick: () => { store.forget(one.id); if (one.id === chat.id) chat.clear(); this.show(); } }))));
    byId("forget-all").hidden = !all.length;
    byId("no-history").hidden = all.length > 0;
  },
};
