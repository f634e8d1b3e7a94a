// Draws one step as a tree. The run's texts reach the page as text nodes, never as markup.

const FONT = 'ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace';
const TEXT_SIZE = 13, NOTE_SIZE = 10.5;
const BOX = 40, ROW = 48, GAP = 38, MARGIN = 16, PADDING = 9, LEAST_WIDTH = 58;
const LONGEST = 26;

function svg(name, attributes, parent, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  if (parent) parent.append(node);
  return node;
}

const ruler = document.createElement("canvas").getContext("2d");
function measure(text, size, weight = 400) {
  ruler.font = `${weight} ${size}px ${FONT}`;
  return ruler.measureText(text).width;
}

// Characters without a shape of their own, among them those that turn the reading direction.
const SHAPELESS = /(?!\n)[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu;
const coded = (character) => `\\u{${character.codePointAt(0).toString(16)}}`;

function raw(token) {
  const text = data.texts && data.texts[token];
  return text ? text : `#${token}`;
}

function shown(token) {
  const marked = raw(token)
    .replace(/^ +| +$/g, (run) => (run.length <= 3 ? "␣".repeat(run.length) : `␣×${run.length} `))
    .replace(/\n/g, "⏎")
    .replace(/\t/g, "⇥")
    .replace(SHAPELESS, coded);
  const characters = [...marked];
  return characters.length <= LONGEST ? marked : `${characters.slice(0, LONGEST - 1).join("")}…`;
}

function running(tokens) {
  if (!data.texts) return tokens.map(raw).join(" ");
  return tokens.map(raw).join("").replace(/\n/g, "⏎\n").replace(/\t/g, "⇥").replace(SHAPELESS, coded);
}

// NaN where the drafter gave no number.
function probability(score, above) {
  return score === null || above === null ? NaN : Math.exp(Math.min(0, score - above));
}

function percent(probability) {
  if (Number.isNaN(probability)) return "?";
  if (probability >= 0.9995) return "100%";
  if (probability >= 0.1) return `${(100 * probability).toFixed(0)}%`;
  return probability >= 0.001 ? `${(100 * probability).toFixed(1)}%` : "<0.1%";
}

function nodesOf(step) {
  const path = new Set(step.accepted);
  const nodes = step.tokens.map((token, row) => ({ token, row, depth: 0, parent: null, children: [] }));
  nodes.forEach((node, row) => {
    if (row === 0) return Object.assign(node, { kind: "root", note: "root" });
    const parent = nodes[step.parents[row]];
    node.parent = parent;
    node.depth = parent.depth + 1;
    parent.children.push(node);
    node.given = probability(step.scores[row], step.scores[step.parents[row]]);
    node.along = probability(step.scores[row], 0);
    node.note = `${percent(node.given)} · ${percent(node.along)}`;
    node.kind = path.has(row) ? "accepted" : path.has(step.parents[row]) ? "refused" : "untested";
  });
  if (step.emitted.length >= step.accepted.length) {
    const parent = nodes[step.accepted.at(-1)];
    const token = step.emitted.at(-1);
    const bonus = { token, depth: parent.depth + 1, parent, children: [], kind: "bonus", note: "bonus" };
    parent.children.push(bonus);
    nodes.push(bonus);
  }
  return nodes;
}

// Leaves are stacked and a parent stands level with its first child. The accepted one goes first,
// so that the path is a straight line on top.
function place(nodes) {
  const order = { accepted: 0, bonus: 1, refused: 2, untested: 2 };
  let free = 0;
  const put = (node) => {
    node.children.sort((a, b) => order[a.kind] - order[b.kind] || (b.along ?? 0) - (a.along ?? 0));
    if (!node.children.length) node.line = free++;
    node.children.forEach(put);
    if (node.children.length) node.line = node.children[0].line;
  };
  put(nodes[0]);

  const widths = [];
  for (const node of nodes) {
    node.text = shown(node.token);
    const width = Math.max(measure(node.text, TEXT_SIZE, 650), measure(node.note, NOTE_SIZE)) + 2 * PADDING;
    widths[node.depth] = Math.max(widths[node.depth] ?? LEAST_WIDTH, width);
  }
  const lefts = [MARGIN];
  widths.forEach((width, depth) => lefts.push(lefts[depth] + width + GAP));
  for (const node of nodes) {
    node.left = lefts[node.depth];
    node.width = widths[node.depth];
    node.top = MARGIN + node.line * ROW;
  }
  return { width: lefts.at(-1) - GAP + MARGIN, height: free * ROW + 2 * MARGIN - (ROW - BOX) };
}

function tooltip(node) {
  const lines = [`${JSON.stringify(raw(node.token))}, token ${node.token}`];
  if (node.row > 0) {
    lines.push(
      `row ${node.row}, depth ${node.depth}`,
      `given its parent ${(100 * node.given).toPrecision(3)}%, whole path ${(100 * node.along).toPrecision(3)}%`,
    );
  }
  lines.push({
    root: "the last token of the step before",
    accepted: "accepted: the target drew it",
    bonus: "bonus: the target drew it after the accepted path",
    refused: "the target drew another token here",
    untested: "never compared: its parent was not accepted",
  }[node.kind]);
  return lines.join("\n");
}

function drawTree(step) {
  const nodes = nodesOf(step);
  const { width, height } = place(nodes);
  const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "font-family": FONT });
  const edges = svg("g", {}, drawing);
  // Later siblings' edges first: the accepted path is drawn over the others.
  for (const node of [...nodes].reverse()) {
    if (node.parent) {
      const [x0, y0] = [node.parent.left + node.parent.width, node.parent.top + BOX / 2];
      const [x1, y1] = [node.left, node.top + BOX / 2];
      const middle = (x0 + x1) / 2;
      svg("path", { class: `edge ${node.kind}`, d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${x1} ${y1}` }, edges);
    }
  }
  for (const node of nodes) {
    const box = svg("g", { class: `box ${node.kind}`, transform: `translate(${node.left} ${node.top})` }, drawing);
    svg("title", {}, box, tooltip(node));
    svg("rect", { class: "frame", width: node.width, height: BOX, rx: 6 }, box);
    if (node.given >= 0) {
      svg("rect", { class: "likely", x: 5, y: BOX - 4.5, width: (node.width - 10) * node.given, height: 2.5, rx: 1 }, box);
    }
    svg("text", { x: PADDING, y: 16, "font-size": TEXT_SIZE }, box, node.text);
    svg("text", { class: "note", x: PADDING, y: 31, "font-size": NOTE_SIZE }, box, node.note);
  }
  at("tree").replaceChildren(drawing);
  at("tree").scrollTo(0, 0);
  page.dataset.boxes = nodes.length;
}

