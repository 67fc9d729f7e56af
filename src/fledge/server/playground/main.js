// Keys, tabs, theme.

function select(name) {
  for (const other of ["chat", "race"]) {
    byId(other).hidden = other !== name;
    byId("tab-" + other).setAttribute("aria-selected", String(other === name));
    byId("tab-" + other).tabIndex = other === name ? 0 : -1;
  }
  byId(name === "chat" ? "question" : "race-question").focus();
}

const THEMES = ["auto", "light", "dark"];
function setTheme(name) {
  store.write("theme", name);
  byId("theme-name").textContent = name;
  if (name === "auto") delete document.documentElement.dataset.theme; else document.documentElement.dataset.theme = name;
}

function sendOnEnter(event, send) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
}

function sendQuestion() {
  if (chat.running || race.running || !byId("ask").reportValidity()) return;
  const question = byId("question").value;
  byId("question").value = "";
  chat.ask(question);
}

byId("ask").onsubmit = (event) => { event.preventDefault(); sendQuestion(); };
byId("question").onkeydown = (event) => sendOnEnter(event, sendQuestion);
byId("race-form").onsubmit = (event) => { event.preventDefault(); race.start(); };
byId("race-question").onkeydown = (event) => sendOnEnter(event, () => race.start());
byId("stop").onclick = () => chat.stop();
byId("race-stop").onclick = () => race.stop();
byId("new").onclick = () => chat.clear();
byId("settings").addEventListener("invalid", () => { byId("settings").open = true; }, true); // else nobody sees what is wrong
byId("ask").onchange = () => store.keepSettings();
byId("history").addEventListener("beforetoggle", (event) => { if (event.newState === "open") past.show(); });
byId("forget-all").onclick = () => { store.forgetAll(); chat.clear(); past.show(); };
byId("round").oninput = (event) => rounds.show(Number(event.target.value));
byId("theme").onclick = () => setTheme(THEMES[(THEMES.indexOf(byId("theme-name").textContent) + 1) % THEMES.length]);
byId("key-bar").onsubmit = (event) => { event.preventDefault(); server.key = byId("key").value.trim(); sessionStorage.setItem("fledge-key", server.key); connect(); };
for (const name of ["chat", "race"]) {
  byId("tab-" + name).onclick = () => select(name);
  byId("tab-" + name).onkeydown = (event) => {
    if (event.key === "ArrowLeft" || event.key === "ArrowRight") byId("tab-" + (name === "chat" ? "race" : "chat")).click();
  };
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") { chat.stop(); race.stop(); }
  const shortcut = { Digit1: () => select("chat"), Digit2: () => select("race"), KeyN: () => { select("chat"); chat.clear(); } }[event.code];
  if (event.altKey && shortcut) { event.preventDefault(); shortcut(); }
});
new ResizeObserver(() => rounds.refresh()).observe(byId("tree")); // also when a counter or the legend grows

setTheme(store.read("theme", "auto"));
store.restoreSettings();
chat.open(store.conversations.find((one) => one.id === store.read("open", null)) ?? { id: null, messages: [] });
select("chat");
connect();
