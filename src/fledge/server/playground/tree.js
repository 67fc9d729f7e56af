// The draft tree of a round, drawn left to right: column d holds the nodes of depth d, the bonus token stands behind
// the accepted path. A node's place is the middle of its leaves.

const SVG = "http://www.w3.org/2000/svg";
const DEEPEST = 7; // of the head's depths that have a colour of their own; deeper ones share the last
const BESIDE_THE_HEAD = new Map([["lookup", "prompt lookup"], ["grammar", "forced by the form"]]);
const NARROWEST = 68; // pixels of a column: five letters of a token
const LOWEST = 17; // pixels of a leaf's row: a line of text
const SCROLLBAR = 10; // as in style.css

// Who proposed a token: the target itself ("" as its source), the head by depth, or a drafter by name.
function originOf(depth, source) {
  const level = Math.min(depth, DEEPEST);
  if (!source) return { place: 0, name: "bonus, the target's", colour: "var(--o0)" };
  if (source === "head") return { place: level, name: `draft, depth ${level}${level === DEEPEST ? " and more" : ""}`, colour: `var(--o${level})` };
  const name = BESIDE_THE_HEAD.get(source);
  return { place: DEEPEST + 1, name: name ?? source, colour: `var(--${name ? source : "other"})` };
}

function shown(text) {
  const visible = text.replaceAll(" ", "·").replaceAll("\n", "⏎").replaceAll("\t", "→") || "∅";
  return visible.length > 12 ? visible.slice(0, 11) + "…" : visible;
}

function element(name, attributes, parent) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (parent) parent.append(made);
  return made;
}

// {tokens, parents, probs, path, bonus} -> nodes with depth and row, in units of columns and leaves.
function placeNodes(tree) {
  const nodes = tree.tokens.map((text, index) => ({
    text, index, source: tree.sources[index], parent: tree.parents[index], prob: tree.probs[index], on: tree.path.includes(index), children: [], depth: 0, row: 0,
  }));
  for (const node of nodes) {
    if (node.parent < 0) continue;
    node.depth = nodes[node.parent].depth + 1;
    nodes[node.parent].children.push(node);
  }
  if (tree.bonus !== null) {
    const end = nodes[tree.path.at(-1)];
    const bonus = { text: tree.bonus, index: -1, source: "", prob: 1, on: true, bonus: true, children: [], depth: end.depth + 1, parent: end.index, row: 0 };
    end.children.unshift(bonus);
    nodes.push(bonus);
  }
  let leaf = 0;
  const place = (node) => {
    node.children.forEach(place);
    node.row = node.children.length ? node.children.reduce((sum, child) => sum + child.row, 0) / node.children.length : leaf++;
  };
  place(nodes[0]);
  return { nodes, columns: Math.max(...nodes.map((node) => node.depth)) + 1, rows: leaf };
}

function drawTree(box, tree) {
  const { nodes, columns, rows } = placeNodes(tree);
  // A deep tree (lookup's branches are up to 15 long) or a wide one is scrolled: squeezed, it couldn't be read.
  const width = Math.max(box.clientWidth, columns * NARROWEST), bar = width > box.clientWidth ? SCROLLBAR : 0, top = 18;
  const height = Math.max(box.offsetHeight - bar, 160, top + rows * LOWEST);
  const dx = width / columns, dy = Math.min((height - top) / rows, 42);
  const w = Math.min(dx - 14, 92), h = Math.min(dy - 3, 26);
  const offset = top + ((height - top) - dy * rows) / 2;
  const x = (node) => dx * (node.depth + 0.5), y = (node) => offset + dy * (node.row + 0.5);
  const svg = element("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
  for (let depth = 0; depth < columns; depth++) {
    element("text", { class: "column", x: dx * (depth + 0.5), y: 10 }, svg).textContent = depth ? "depth " + depth : "last token";
  }
  const edges = element("g", {}, svg);
  for (const node of nodes) {
    if (node.parent >= 0) {
      const parent = nodes[node.parent], from = x(parent) + w / 2, to = x(node) - w / 2, middle = (from + to) / 2;
      const d = `M${from} ${y(parent)} C${middle} ${y(parent)} ${middle} ${y(node)} ${to} ${y(node)}`;
      element("path", { class: node.on ? "edge on" : "edge", d, opacity: node.on ? 1 : 0.5 + 0.5 * node.prob }, edges);
    }
    const group = element("g", { class: node.on ? "node on" : "node", opacity: node.on ? 1 : 0.8 + 0.2 * node.prob }, svg);
    const box = element("rect", { x: x(node) - w / 2, y: y(node) - h / 2, width: w, height: h, rx: 6 }, group);
    const origin = originOf(node.depth, node.source);
    if (node.on || origin.place > DEEPEST) box.style.fill = origin.colour;
    const letters = Math.max(1, Math.floor((w - 6) / 7.3)), text = shown(node.text);
    element("text", { x: x(node), y: y(node) }, group).textContent = text.length > letters ? text.slice(0, letters - 1) + "…" : text;
    const what = node.bonus ? "bonus token, the target's own" : node.depth ? `${origin.place > DEEPEST ? origin.name : "draft"}, depth ${node.depth}, probability ${node.prob.toFixed(3)}` : "the token before the round";
    element("title", {}, group).textContent = `${JSON.stringify(node.text)}: ${what}${node.on ? "" : ", not taken"}`;
  }
  box.replaceChildren(svg);
}

// The rounds of the latest answer: draws the newest while it streams, and any of them afterwards.
const rounds = {
  trees: [], drawn: -1, pending: false, hint: null,
  clear() { this.trees = []; this.drawn = -1; this.refresh(); },
  add(trees) {
    if (!trees.length) return;
    const follow = this.drawn === this.trees.length - 1;
    this.trees.push(...trees);
    if (follow) this.drawn = this.trees.length - 1;
    if (!this.pending) { this.pending = true; requestAnimationFrame(() => { this.pending = false; this.refresh(); }); }
  },
  show(index) { this.drawn = index; this.refresh(); },
  refresh() {
    const slider = byId("round");
    slider.max = Math.max(this.trees.length - 1, 0);
    slider.value = Math.max(this.drawn, 0);
    slider.disabled = this.trees.length < 2;
    byId("round-name").textContent = this.trees.length ? `round ${this.drawn + 1} of ${this.trees.length}` : "";
    this.hint ??= byId("tree").firstElementChild;
    if (this.drawn >= 0) drawTree(byId("tree"), this.trees[this.drawn]); else byId("tree").replaceChildren(this.hint);
  },
};
