// The conversation.

const chat = {
  messages: [], running: null,

  empty() {
    const box = document.createElement("div");
    box.className = "empty";
    box.append("Tokens are coloured by who proposed them: the draft head, by depth, or the target itself.", document.createElement("br"));
    for (const question of ["Why is the sky blue?", "Write a haiku about a young bird.", "Explain binary search in three sentences."]) {
      const button = document.createElement("button");
      button.textContent = question;
      button.onclick = () => this.ask(question);
      box.append(button);
    }
    byId("log").replaceChildren(box);
  },

  clear() { this.stop(); this.messages = []; this.empty(); rounds.clear(); byId("question").focus(); },

  stop() { if (this.running) this.running.abort(); },

  turn(role) {
    const turn = document.createElement("div"), log = byId("log");
    turn.className = "turn " + role;
    log.querySelector(".empty")?.remove();
    log.append(turn);
    log.scrollTop = log.scrollHeight;
    return turn;
  },

  async ask(question) {
    if (this.running || race.running || !question.trim()) return;
    this.running = new AbortController();
    byId("send").disabled = true; byId("stop").disabled = false;
    this.turn("user").textContent = question;
    const turn = this.turn("assistant"), box = document.createElement("div"), note = document.createElement("p");
    box.className = "answer"; note.className = "note";
    turn.append(box, note);
    const answer = new Answer(box), log = byId("log");
    const before = this.messages, asked = [...before, { role: "user", content: question }];
    const keep = () => { // unless it was cleared meanwhile
      if (this.messages === before) this.messages = [...asked, { role: "assistant", content: answer.text }];
    };
    rounds.clear();
    try {
      const usage = await streamChat({
        messages: asked, temperature: Number(byId("temperature").value), max_completion_tokens: Number(byId("tokens").value),
        speculate: byId("speculate").checked,
      }, this.running.signal, (choice, at) => {
        const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
        answer.add(choice, at);
        rounds.add(choice.trace.trees);
        showCounters(answer);
        if (atEnd) log.scrollTop = log.scrollHeight;
      });
      answer.finish(usage);
      keep();
      note.textContent = `${answer.count} tokens · tau ${answer.tau.toFixed(2)} · ${(answer.tpot || 0).toFixed(1)} ms per token · first after ${answer.first.toFixed(0)} ms`;
    } catch (error) {
      note.textContent = error.name === "AbortError" ? "stopped" : error.message;
      note.classList.toggle("error", error.name !== "AbortError");
      if (answer.text) keep();
    } finally {
      this.running = null;
      byId("send").disabled = false; byId("stop").disabled = true;
      if (!server.measured) await connect(); // what the planner believes of plain decode by now
      if (answer.count) showCounters(answer);
      log.scrollTop = log.scrollHeight;
    }
  },
};
