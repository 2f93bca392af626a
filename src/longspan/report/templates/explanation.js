"use strict";
// Moves through an explanation. Texts enter the page as text alone, never as HTML.
{
  const EXCERPT = 2000; // Pieces of the excerpt.
  const UNREAD = 2000; // Characters of what was not read, before and after what was.
  const LEAST = 40; // Pieces in the strip at the largest zoom.
  const WEAK = 0.05, STRONG = 0.3; // Shares of the largest score from which words have a colour, and patches a cross.

  const get = (id) => document.getElementById(id);
  const data = JSON.parse(get("data").textContent);
  const count = data.names ? data.names.length : data.spans.length / 2;
  const [starts, ends] = bounds(data.spans ?? []);
  const rows = data.rows.map(() => null);
  const strip = get("strip"), whole = get("whole"), excerpt = get("excerpt"), grid = get("grid");
  const slider = get("place");
  const patches = grid ? [...grid.querySelectorAll("rect")] : [];

  // What is shown: the selected piece, the row of scores, and the pieces in the strip.
  const state = { place: 0, row: 0, from: 0, to: count };
  let drawn = { row: -1, first: -1 }; // What is in the excerpt or the grid.
  let frame = 0;

  function bounds(spans) {
    const starts = new Int32Array(spans.length / 2), ends = new Int32Array(spans.length / 2);
    for (let piece = 0, end = 0; piece < starts.length; piece++) {
      starts[piece] = end + spans[2 * piece];
      end = ends[piece] = starts[piece] + spans[2 * piece + 1];
    }
    return [starts, ends];
  }

  // Returns the selected scores, from -top to top; one value holds for `step` pieces.
  function row() {
    return rows[state.row] ??= decoded(data.rows[state.row]);
  }

  function decoded({ step, bits, largest, scores }) {
    const binary = atob(scores), bytes = new Uint8Array(binary.length);
    for (let at = 0; at < bytes.length; at++) bytes[at] = binary.charCodeAt(at);
    const values = bits === 16 ? new Int16Array(bytes.buffer) : new Int8Array(bytes.buffer);
    return { step, largest, values, top: 2 ** (bits - 1) - 1, ...ranked(values) };
  }

  // Returns the numbers of values, the strongest first, and the rank of each value.
  function ranked(values) {
    const length = values.length;
    const order = Float64Array.from(values, (value, at) => (32768 - Math.abs(value)) * length + at).sort();
    const ranks = new Int32Array(length);
    order.forEach((key, rank) => { ranks[order[rank] = key % length] = rank; });
    return { order, ranks };
  }

  // Returns how much a piece speaks for the answer, relative to the strongest, from -1 to 1.
  function strength(piece) {
    const { values, step, top } = row();
    return values[Math.floor(piece / step)] / top;
  }

  function told(piece) {
    const score = Number((strength(piece) * row().largest).toPrecision(3));
    return (score > 0 ? "+" : "") + score;
  }

  function called(piece) {
    if (data.text !== undefined) return `“${data.text.slice(starts[piece], ends[piece])}”`;
    if (data.names) return data.names[piece];
    return `${(starts[piece] / 100).toFixed(2)} to ${(ends[piece] / 100).toFixed(2)} s`;
  }

  function strongest(from, to) {
    let found = from;
    for (let piece = from; piece < to; piece++) {
      if (Math.abs(strength(piece)) > Math.abs(strength(found))) found = piece;
    }
    return found;
  }

  // Changes what is shown, in the next frame: many events in one frame draw once.
  function change(fresh) {
    Object.assign(state, fresh);
    state.place = Math.max(0, Math.min(count - 1, state.place));
    const size = state.to - state.from;
    if (state.place < state.from || state.place >= state.to) view(size);
    frame ||= requestAnimationFrame(show);
  }

  // Puts so many pieces around the selected one into the strip.
  function view(size) {
    state.from = Math.max(0, Math.min(count - size, state.place - (size >> 1)));
    state.to = state.from + size;
  }

  function zoom(factor) {
    view(Math.round(Math.min(count, Math.max(Math.min(LEAST, count), (state.to - state.from) / factor))));
    change({});
  }

  // Selects the piece that is so many ranks weaker.
  function step(ranks) {
    const { order, ranks: all, step } = row();
    const rank = all[Math.floor(state.place / step)] + ranks;
    if (rank >= 0 && rank < order.length) change({ place: order[rank] * step });
  }

  function show() {
    frame = 0;
    slider.value = state.place;
    const number = (state.place + 1).toLocaleString("en"), all = count.toLocaleString("en");
    get("selected").textContent = `${called(state.place)}: ${told(state.place)} (${data.what} ${number} of ${all})`;
    if (grid) colourGrid();
    else showStrips();
    if (excerpt) showExcerpt();
  }

  function showStrips() {
    const zoomed = state.to - state.from < count;
    whole.hidden = !zoomed;
    if (zoomed) draw(whole, 0, count, [state.from, state.to]);
    draw(strip, state.from, state.to, [state.place, state.place + 1]);
    get("zoom-out").disabled = !zoomed;
    get("zoom-in").disabled = state.to - state.from <= LEAST;
  }

  // Draws for each pixel the strongest piece for the answer upwards, the strongest against it downwards, and a frame.
  function draw(canvas, from, to, [first, last]) {
    const scale = window.devicePixelRatio;
    const width = canvas.width = Math.max(1, Math.round(canvas.clientWidth * scale));
    const height = canvas.height = Math.max(1, Math.round(canvas.clientHeight * scale));
    const ink = canvas.getContext("2d"), colours = getComputedStyle(document.documentElement);
    const colour = (name) => colours.getPropertyValue(name);
    const half = height / 2, perPixel = (to - from) / width;
    // Below the bars, so that it hides none.
    ink.strokeStyle = colour("--text");
    ink.lineWidth = 2 * scale;
    const left = (first - from) / perPixel, right = (last - from) / perPixel;
    ink.strokeRect(left - scale, scale, right - left + 2 * scale, height - 2 * scale);
    for (const [sign, name] of [[1, "--for"], [-1, "--against"]]) {
      ink.fillStyle = colour(name);
      for (let x = 0; x < width; x++) {
        const begin = from + Math.floor(x * perPixel), end = Math.max(begin + 1, from + Math.floor((x + 1) * perPixel));
        let most = 0;
        for (let piece = begin; piece < end; piece++) most = Math.max(most, sign * strength(piece));
        if (most > 0) ink.fillRect(x, half, 1, -sign * most * half);
      }
    }
    ink.fillStyle = colour("--line");
    ink.fillRect(0, half, width, scale);
  }

  // Returns an element for a piece; the style sheet has ten levels of strength either way.
  function marked(piece) {
    const share = strength(piece), weak = Math.abs(share) <= WEAK;
    const element = document.createElement(weak ? "span" : "mark");
    if (!weak) element.className = `${share > 0 ? "for" : "against"}-${Math.ceil(10 * Math.abs(share))}`;
    element.textContent = data.text.slice(starts[piece], ends[piece]);
    return element;
  }

  function showExcerpt() {
    const first = Math.max(0, Math.min(count - EXCERPT, state.place - EXCERPT / 2));
    if (drawn.row !== state.row || Math.abs(first - drawn.first) > EXCERPT / 4) {
      excerpt.replaceChildren(...pieces(first, Math.min(count, first + EXCERPT)));
      drawn = { row: state.row, first };
    }
    excerpt.querySelector(".selected")?.classList.remove("selected");
    const word = excerpt.children[state.place - drawn.first];
    word.classList.add("selected");
    const top = word.offsetTop, seen = top >= excerpt.scrollTop && top < excerpt.scrollTop + excerpt.clientHeight - 32;
    if (!seen) excerpt.scrollTop = top - excerpt.clientHeight / 3;
  }

  // Returns the text from one piece to before another: elements for pieces, and texts for what lies between them.
  function pieces(first, last) {
    const found = [];
    let end = first ? starts[first] : Math.max(0, starts[0] - UNREAD);
    if (end) found.push("… ");
    for (let piece = first; piece < last; piece++) {
      if (starts[piece] > end) found.push(data.text.slice(end, starts[piece]));
      found.push(marked(piece));
      end = ends[piece];
    }
    if (last < count) found.push(" …");
    else found.push(data.text.slice(end, end + UNREAD));
    return found;
  }

  function colourGrid() {
    if (drawn.row !== state.row) {
      grid.querySelectorAll("path").forEach((cross) => cross.remove());
      patches.forEach(colourPatch);
      drawn.row = state.row;
    }
    grid.querySelector(".selected")?.classList.remove("selected");
    patches[state.place].classList.add("selected");
  }

  function colourPatch(patch, piece) {
    const share = strength(piece);
    const [x, y, width, height] = ["x", "y", "width", "height"].map((name) => patch.getAttribute(name));
    patch.classList.toggle("against", share < 0);
    patch.setAttribute("fill-opacity", Math.abs(share));
    patch.firstElementChild.textContent = told(piece);
    if (share >= -STRONG) return;
    const cross = document.createElementNS(grid.namespaceURI, "path");
    cross.setAttribute("d", `M${x} ${y}l${width} ${height}m0 -${height}l-${width} ${height}`);
    grid.append(cross);
  }

  // Jumps to the strongest piece of the pixel under a pointer, so that a bar leads to the piece that it shows.
  function follow(canvas, range) {
    const jump = (event) => {
      const [from, to] = range(), box = canvas.getBoundingClientRect(), size = (to - from) / box.width;
      const x = Math.max(0, Math.min(box.width - 1, event.clientX - box.left));
      const first = from + Math.floor(x * size), last = from + Math.floor((x + 1) * size);
      change({ place: strongest(first, Math.max(first + 1, last)) });
    };
    canvas.addEventListener("pointerdown", (event) => {
      event.preventDefault(); // It would take the focus from the slider, and its keys with it.
      slider.focus({ preventScroll: true });
      canvas.setPointerCapture(event.pointerId);
      jump(event);
    });
    canvas.addEventListener("pointermove", (event) => event.buttons && jump(event));
  }

  const keys = { n: () => step(1), p: () => step(-1) };
  if (strip) {
    Object.assign(keys, { "+": () => zoom(2), "=": () => zoom(2), "-": () => zoom(0.5) });
    follow(strip, () => [state.from, state.to]);
    follow(whole, () => [0, count]);
    get("zoom-in").addEventListener("click", keys["+"]);
    get("zoom-out").addEventListener("click", keys["-"]);
    new ResizeObserver(() => change({})).observe(strip);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => change({}));
  }
  get("next").addEventListener("click", keys.n);
  get("previous").addEventListener("click", keys.p);
  get("part")?.addEventListener("change", (event) => change({ row: Number(event.target.value) }));
  slider.addEventListener("input", () => change({ place: Number(slider.value) }));
  slider.addEventListener("keydown", (event) => {
    const pages = { PageUp: 1, PageDown: -1 }[event.key];
    if (!pages) return;
    event.preventDefault();
    change({ place: state.place + pages * Math.max(1, Math.round((state.to - state.from) / 10)) });
  });
  get("explorer").addEventListener("keydown", (event) => {
    const modified = event.ctrlKey || event.metaKey || event.altKey;
    if (modified || event.target.tagName === "SELECT" || !Object.hasOwn(keys, event.key.toLowerCase())) return;
    event.preventDefault();
    keys[event.key.toLowerCase()]();
  });
  if (excerpt) {
    const under = (event) => [...excerpt.children].indexOf(event.target);
    excerpt.dir = /^[^A-Za-z]*[\u0590-\u08ff]/.test(data.text) ? "rtl" : "ltr"; // "auto" takes long.
    excerpt.addEventListener("click", (event) => under(event) >= 0 && change({ place: drawn.first + under(event) }));
    excerpt.addEventListener("pointerover", (event) => {
      if (under(event) >= 0) event.target.title = told(drawn.first + under(event));
    });
  }
  patches.forEach((patch, place) => patch.addEventListener("click", () => change({ place })));

  get("figure")?.remove();
  get("explorer").hidden = false;
  change({ place: row().order[0] });
}
