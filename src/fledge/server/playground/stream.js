// Talking to the server. Everything else gets parsed chunks.

const server = { model: null, key: sessionStorage.getItem("fledge-key") || "" };

const byId = (id) => document.getElementById(id);

function headers() {
  const found = { "content-type": "application/json" };
  if (server.key) found.authorization = "Bearer " + server.key;
  return found;
}

async function failure(response) {
  if (response.status === 401) byId("key-bar").hidden = false;
  let message = "the server answered " + response.status;
  try { message = (await response.json()).error.message; } catch { /* not ours: the status must do */ }
  return Object.assign(new Error(message), { status: response.status });
}

// Calls onChunk(chunk, milliseconds since the request) for each event; resolves with the usage.
async function streamChat(body, signal, onChunk) {
  const begun = performance.now();
  const response = await fetch("v1/chat/completions", {
    method: "POST", headers: headers(), signal,
    body: JSON.stringify({ model: server.model, stream: true, stream_options: { include_usage: true }, return_trace: true, ...body }),
  });
  if (!response.ok) throw await failure(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "", usage = null;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return usage;
    const events = (rest + value).split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (!event.startsWith("data: ") || event === "data: [DONE]") continue;
      const chunk = JSON.parse(event.slice(6));
      if (chunk.error) throw new Error(chunk.error.message);
      if (chunk.usage) usage = chunk.usage;
      if (chunk.choices.length) onChunk(chunk.choices[0], performance.now() - begun);
    }
  }
}

// Which head drafts, or what decodes without one.
function headOf(info) {
  if (info.head) return `draft head ${info.head}`;
  if (info.learning) return "no draft head yet, one is learning";
  return info.speculative ? "a drafter of its own" : "no draft head: plain decode";
}

async function connect() {
  try {
    const response = await fetch("server_info", { headers: headers() });
    if (!response.ok) throw await failure(response);
    const info = await response.json();
    server.model = info.served_model_name;
    byId("key-bar").hidden = true;
    byId("model").textContent = `${info.served_model_name} · ${headOf(info)}`;
    byId("model").classList.remove("error");
    if (info.learning) learning.follow();
  } catch (error) {
    byId("model").textContent = error.message;
    byId("model").classList.add("error");
  }
}
