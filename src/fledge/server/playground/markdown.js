// Markdown as elements. marked reads it; an answer's own text never becomes HTML, so it can't run or load anything.

function make(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// Pages that come over HTTP from another machine have no clipboard.
async function toClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = make("textarea", { value: text });
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("not copied");
}

function copyButton(text) {
  const button = make("button", { type: "button", className: "small quiet", textContent: "Copy" });
  button.onclick = async () => {
    try { await toClipboard(text()); button.textContent = "Copied"; } catch { button.textContent = "Not allowed"; }
    setTimeout(() => { button.textContent = "Copy"; }, 1200);
  };
  return button;
}

function codeBlock({ text, lang }) {
  const language = (lang || "").split(/\s/)[0].toLowerCase(), code = make("code");
  if (hljs.getLanguage(language)) code.innerHTML = hljs.highlight(text, { language, ignoreIllegals: true }).value; // escaped
  else code.textContent = text;
  return make("div", { className: "code" }, make("div", { className: "code-bar" }, language || "text", copyButton(() => text)), make("pre", {}, code));
}

function cell(tag, { tokens, align }) {
  const made = make(tag, {}, ...inline(tokens));
  if (align) made.style.textAlign = align;
  return made;
}

function table({ header, rows }) {
  const row = (tag, cells) => make("tr", {}, ...cells.map((one) => cell(tag, one)));
  return make("div", { className: "wide" }, make("table", {}, make("thead", {}, row("th", header)), make("tbody", {}, ...rows.map((cells) => row("td", cells)))));
}

function blocks(tokens) {
  return tokens.flatMap((token) => {
    switch (token.type) {
      case "space": case "def": return [];
      case "heading": return [make("h" + Math.min(token.depth + 2, 6), {}, ...inline(token.tokens))];
      case "paragraph": return [make("p", {}, ...inline(token.tokens))];
      case "text": return token.tokens ? inline(token.tokens) : [token.text]; // of a tight list
      case "code": return [codeBlock(token)];
      case "blockquote": return [make("blockquote", {}, ...blocks(token.tokens))];
      case "hr": return [make("hr")];
      case "list": {
        const list = make(token.ordered ? "ol" : "ul", {}, ...token.items.map((item) => make("li", {}, ...blocks(item.tokens))));
        if (token.ordered && token.start !== 1) list.start = token.start;
        return [list];
      }
      case "table": return [table(token)];
      case "checkbox": return [token.checked ? "☑ " : "☐ "];
      default: return [make("p", {}, token.raw)];
    }
  });
}

function inline(tokens) {
  return tokens.flatMap((token) => {
    switch (token.type) {
      case "strong": case "em": case "del": return [make(token.type, {}, ...inline(token.tokens))];
      case "codespan": return [make("code", {}, token.text)];
      case "br": return [make("br")];
      case "link": {
        const inside = inline(token.tokens);
        return /^(https?:|mailto:)/i.test(token.href) ? [make("a", { href: token.href, target: "_blank", rel: "noopener noreferrer" }, ...inside)] : inside;
      }
      case "escape": return [token.text];
      case "text": return token.tokens ? inline(token.tokens) : [token.text];
      case "checkbox": return [token.checked ? "☑ " : "☐ "];
      default: return [token.raw]; // HTML and pictures, as they were written
    }
  });
}

// The text's elements; null if there is nothing to format.
function formatted(text) {
  const tokens = marked.lexer(text);
  const plain = (token) => ["space", "text", "escape", "br"].includes(token.type) || (token.type === "paragraph" && token.tokens.every(plain));
  return tokens.every(plain) ? null : make("div", { className: "formatted" }, ...blocks(tokens));
}
