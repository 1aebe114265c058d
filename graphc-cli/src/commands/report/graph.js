// A graph as boxes in ranks: every node below what it reads.

const BOX = { width: 150, height: 36, gap: 18, rank: 34, bend: 12 };

/** Edges that are longer than this many ranks are drawn without a way of their own between the boxes. */
const LONGEST = 24;

/** Gives nodes and the bends of long edges a rank and a place in it. */
function layout(graph) {
  const items = new Map();
  for (const node of graph.nodes) items.set(node.id, { node, up: [], down: [], rank: 0, width: BOX.width });
  const edges = [];
  for (const node of graph.nodes) {
    for (const from of new Set(node.operands)) {
      if (!items.has(from)) continue;
      edges.push({ from: items.get(from), to: items.get(node.id), path: [] });
      items.get(node.id).rank = Math.max(items.get(node.id).rank, items.get(from).rank + 1);
    }
  }
  // What is read late stands just above its first reader.
  for (const node of [...graph.nodes].reverse()) {
    const readers = edges.filter((edge) => edge.from.node === node).map((edge) => edge.to.rank);
    if (node.operands.length === 0 && readers.length > 0) items.get(node.id).rank = Math.min(...readers) - 1;
  }
  const ranks = [];
  const put = (item) => { (ranks[item.rank] = ranks[item.rank] || []).push(item); };
  for (const item of items.values()) put(item);
  for (const edge of edges) {
    let above = edge.from;
    const span = edge.to.rank - edge.from.rank;
    for (let rank = edge.from.rank + 1; rank < edge.to.rank && span <= LONGEST; rank += 1) {
      const bend = { node: null, up: [above], down: [], rank, width: BOX.bend };
      above.down.push(bend);
      put(bend);
      edge.path.push(bend);
      above = bend;
    }
    above.down.push(edge.to);
    edge.to.up.push(above);
  }
  for (let rank = 0; rank < ranks.length; rank += 1) ranks[rank] = ranks[rank] || [];
  order(ranks);
  spread(ranks);
  return { items, edges, ranks };
}

const mean = (list) => list.reduce((sum, x) => sum + x, 0) / list.length;

/** Sorts each rank by where its neighbours are, down and up some times. */
function order(ranks) {
  for (const rank of ranks) rank.forEach((item, at) => { item.at = at; });
  for (let sweep = 0; sweep < 8; sweep += 1) {
    const down = sweep % 2 === 0;
    for (const rank of down ? ranks : [...ranks].reverse()) {
      for (const item of rank) {
        const near = down ? item.up : item.down;
        item.wish = near.length > 0 ? mean(near.map((other) => other.at)) : item.at;
      }
      rank.sort((a, b) => a.wish - b.wish || a.at - b.at);
      rank.forEach((item, at) => { item.at = at; });
    }
  }
}

/** Gives every item an x near its neighbours', without overlaps. */
function spread(ranks) {
  for (const rank of ranks) {
    let x = 0;
    for (const item of rank) { item.x = x + item.width / 2; x += item.width + BOX.gap; }
  }
  for (let sweep = 0; sweep < 14; sweep += 1) {
    const down = sweep % 2 === 0;
    for (const rank of down ? ranks : [...ranks].reverse()) {
      for (const item of rank) {
        const near = down ? item.up : item.down;
        item.wish = near.length > 0 ? mean(near.map((other) => other.x)) : item.x;
      }
      let last = null;
      for (const item of rank) {
        const least = last === null ? -Infinity : last.x + (last.width + item.width) / 2 + BOX.gap;
        item.x = Math.max(item.wish, least);
        last = item;
      }
      const off = rank.length > 0 ? mean(rank.map((item) => item.wish - item.x)) : 0;
      for (const item of rank) item.x += off;
    }
  }
}

/** Draws a graph into an element. `through` says of an edge whether its value goes through memory, and why. */
function drawGraph(into, graph, through, chosen) {
  const { items, edges, ranks } = layout(graph);
  const all = ranks.flat();
  if (all.length === 0) { into.replaceChildren(html("p", { class: "empty" }, "no nodes")); return; }
  const left = Math.min(...all.map((item) => item.x - item.width / 2)) - 20;
  const right = Math.max(...all.map((item) => item.x + item.width / 2)) + 20;
  const step = BOX.height + BOX.rank;
  const y = (item) => 20 + item.rank * step;
  const height = 40 + ranks.length * step;
  const lines = edges.map((edge) => {
    const points = [[edge.from.x, y(edge.from) + BOX.height]];
    for (const bend of edge.path) points.push([bend.x, y(bend)], [bend.x, y(bend) + BOX.height]);
    points.push([edge.to.x, y(edge.to)]);
    let path = `M${points[0][0]} ${points[0][1]}`;
    for (let at = 1; at < points.length; at += 1) {
      const [[x0, y0], [x1, y1]] = [points[at - 1], points[at]];
      const half = (y1 - y0) / 2;
      path += x0 === x1 ? `L${x1} ${y1}` : `C${x0} ${y0 + half} ${x1} ${y1 - half} ${x1} ${y1}`;
    }
    const why = through(edge.from.node, edge.to.node);
    return svg("path", { d: path, class: why === null ? "edge" : "edge memory" }, why ? tip(why) : []);
  });
  const outputs = new Map();
  for (const output of graph.outputs) outputs.set(output.node, [...(outputs.get(output.node) || []), output.name]);
  const boxes = [...items.values()].map((item) => {
    const { node } = item;
    const group = node.regions[0];
    const named = outputs.get(node.id);
    const under = named ? "→ " + named.join(", ") : node.types.join(", ");
    const box = svg("g", { class: "box", transform: `translate(${item.x - BOX.width / 2} ${y(item)})` }, [
      svg("rect", {
        width: BOX.width, height: BOX.height, rx: node.is_input ? 17 : 7,
        style: `fill: ${group ? paint(group) : "var(--panel)"}; stroke: ${group ? outline(group) : "var(--soft)"}`,
        "stroke-dasharray": named ? "5 3" : null,
      }),
      svg("text", { x: BOX.width / 2, y: 15, "text-anchor": "middle", "font-weight": 600 }, cut(node.op, BOX.width - 12)),
      svg("text", { x: BOX.width / 2, y: 28, "text-anchor": "middle", class: "soft" }, cut(under, BOX.width - 8)),
      tip(node.label + "\n" + node.types.join(", ")),
    ]);
    box.addEventListener("click", () => {
      for (const other of document.querySelectorAll(".box.chosen")) other.classList.remove("chosen");
      box.classList.add("chosen");
      chosen(node);
    });
    return box;
  });
  const width = right - left;
  const picture = svg("svg", { viewBox: `${left} 0 ${width} ${height}`, width, height }, [...lines, ...boxes]);
  into.replaceChildren(picture);
  return { picture, width, height };
}

/** Puts buttons beside a graph that make it larger and smaller; it begins as wide as its place. */
function zoomable(buttons, into, drawn) {
  let scale = Math.min(1, Math.max(0.6, (into.clientWidth - 24) / drawn.width));
  const set = () => {
    drawn.picture.setAttribute("width", drawn.width * scale);
    drawn.picture.setAttribute("height", drawn.height * scale);
    drawn.picture.style.margin = drawn.width * scale < into.clientWidth ? "0 auto" : "0";
    drawn.picture.style.display = "block";
  };
  const button = (text, factor) => html("button", { type: "button", on: { click: () => { scale *= factor; set(); } } }, text);
  buttons.replaceChildren(button("−", 1 / 1.3), button("+", 1.3));
  set();
}
