"use strict";
// What the browser keeps until it is cleared: settings and conversations. Nothing of it is sent anywhere by itself.

const MOST_CONVERSATIONS = 50;
const SETTINGS = ["system", "temperature", "tokens", "top-p", "top-k", "repetition", "seed", "speculate"];

const store = {
  read(name, otherwise) {
    try { return JSON.parse(localStorage.getItem("fledge-" + name)) ?? otherwise; } catch { return otherwise; }
  },

  write(name, value) {
    try { localStorage.setItem("fledge-" + name, JSON.stringify(value)); return true; } catch { return false; } // full, or not allowed
  },

  get conversations() { return this.read("conversations", []); },

  // Another tab may have added some since they were read last.
  keep(conversation) {
    const all = [conversation, ...this.conversations.filter((one) => one.id !== conversation.id)].slice(0, MOST_CONVERSATIONS);
    while (!this.write("conversations", all) && all.length > 1) all.pop();
    this.write("open", conversation.id);
  },

  forget(id) { this.write("conversations", this.conversations.filter((one) => one.id !== id)); },

  forgetAll() { localStorage.removeItem("fledge-conversations"); localStorage.removeItem("fledge-open"); },

  keepSettings() {
    this.write("settings", Object.fromEntries(SETTINGS.map((name) => [name, byId(name).type === "checkbox" ? byId(name).checked : byId(name).value])));
  },

  restoreSettings() {
    for (const [name, value] of Object.entries(this.read("settings", {}))) {
      if (SETTINGS.includes(name)) byId(name)[byId(name).type === "checkbox" ? "checked" : "value"] = value;
    }
  },
};
