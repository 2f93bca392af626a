"use strict";
// Sends what is typed or dropped to the server that this page comes from. Texts enter the page as text alone.
{
  const get = (id) => document.getElementById(id);
  const MOST_BUTTONS = 30; // Labels beyond these are in a list.
  const MOST_ROWS = 20; // Rows of the table of probabilities.
  const state = { about: null, file: null, sent: null, place: 0, token: "", turn: 0 };

  // Answers of the server, or an error with its sentence.
  async function ask(path, body, accept = "application/json") {
    const headers = { Accept: accept };
    if (state.token) headers.Authorization = `Bearer ${state.token}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let answer;
    try {
      answer = await fetch(path, { method: body === undefined ? "GET" : "POST", headers, body: JSON.stringify(body) });
    } catch {
      throw new Error("The server does not answer. Is it running?");
    }
    if (answer.ok) return accept === "text/html" ? answer.text() : answer.json();
    if (answer.status === 401) get("access").hidden = false;
    const told = await answer.json().catch(() => ({}));
    throw new Error(told.detail ?? `The server answers with status ${answer.status}.`);
  }

  // Does something, and shows why it cannot be done.
  async function attempt(action) {
    get("problem").textContent = "";
    try {
      await action();
    } catch (error) {
      get("problem").textContent = error.message;
    }
  }

  function element(name, text = "", attributes = {}) {
    const made = document.createElement(name);
    made.textContent = text;
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    return made;
  }

  async function start() {
    const about = state.about = await ask("metadata");
    get("access").hidden = true;
    document.title = `${about.run} – longspan`;
    get("title").textContent = about.run;
    get("about").textContent = about.task.replaceAll("_", " ");
    const written = about.inputs.filter((one) => ["text", "a list of words"].includes(one.kind));
    const needed = about.inputs.filter((one) => one.required && !written.includes(one));
    const columns = needed.length ? (about.suffixes.length ? [] : [{ name: "Input as JSON", json: true }]) : written;
    get("fields").replaceChildren(...columns.flatMap(({ name, json = false }, number) => [
      element("label", name, { for: `field-${number}` }),
      element("textarea", "", { id: `field-${number}`, ...(json ? { "data-json": "" } : { "data-column": name }) }),
    ]));
    get("file").setAttribute("accept", about.suffixes.join(","));
    showLabels();
    if (about.to_label) {
      get("walk").hidden = get("keys").hidden = false;
      for (const area of areas()) area.readOnly = true;
      await go(Math.min(about.first_open, about.to_label - 1));
    }
  }

  const areas = () => [...get("fields").querySelectorAll("textarea")];

  // What is to be sent: a file, an object of columns, or JSON.
  function given() {
    if (state.file) return state.file;
    const written = areas();
    if (written.length === 1 && "json" in written[0].dataset) {
      try {
        return JSON.parse(written[0].value);
      } catch (error) {
        throw new Error(`This is no JSON: ${error.message}.`);
      }
    }
    const filled = written.filter((area) => area.value.trim());
    if (!filled.length) throw new Error("Write or paste something, or choose a file.");
    return Object.fromEntries(filled.map((area) => [area.dataset.column, area.value]));
  }

  function choose(file) {
    get("preview").replaceChildren();
    state.file = null;
    get("chosen").textContent = "Drop one anywhere on this page, or choose one.";
    if (!file) return;
    if (file.size * 4 / 3 > state.about.limits.body) {
      get("problem").textContent = `${file.name} is larger than this server reads.`;
      return;
    }
    const reader = new FileReader();
    reader.onload = () => attempt(async () => {
      const url = reader.result;
      state.file = { name: file.name, bytes: url.slice(url.indexOf(",") + 1) };
      get("chosen").textContent = file.name;
      if (file.type.startsWith("image/")) get("preview").append(element("img", "", { src: url, alt: file.name }));
      if (file.type.startsWith("audio/")) get("preview").append(element("audio", "", { src: url, controls: "" }));
      await predict();
    });
    reader.readAsDataURL(file);
  }

  async function predict() {
    const input = state.sent = given(), turn = ++state.turn;
    get("result").hidden = get("why").hidden = true;
    get("saved").textContent = "";
    pressed([]);
    const found = (await ask("predict", { inputs: [input] })).predictions[0];
    // Another example may be there by now.
    if (turn === state.turn) show(found);
  }

  function show(found) {
    const { where, probabilities, tokens_read: read, tokens_total: total, ...others } = found;
    const answer = found.label ?? found.labels?.join(", ") ?? found.number;
    get("answer").textContent = answer === undefined || answer === null ? "Prediction" : answer === "" ? "no label" : String(answer);
    get("cut").textContent = read === undefined || read === null ? "" : `Only ${read} of ${total} tokens were read.`;
    const table = element("table");
    if (probabilities) {
      table.append(element("caption", "Probabilities"));
      const shares = Object.entries(probabilities).sort((one, other) => other[1] - one[1]);
      for (const [label, share] of shares.slice(0, MOST_ROWS)) {
        const row = table.insertRow();
        row.append(element("th", label, { scope: "row" }), element("td", share.toFixed(3), { class: "number" }));
        row.insertCell().append(bar(share));
      }
      if (shares.length > MOST_ROWS) table.insertRow().append(element("td", `and ${shares.length - MOST_ROWS} more`));
    } else {
      for (const [name, value] of Object.entries(others)) {
        const row = table.insertRow();
        row.append(element("th", name.replaceAll("_", " "), { scope: "row" }));
        row.insertCell().append(element("pre", typeof value === "string" ? value : JSON.stringify(value, null, 1)));
      }
    }
    get("details").replaceChildren(table);
    get("result").hidden = false;
    if (found.labels) pressed(found.labels);
    if (!state.about.to_label) get("answer").focus();
  }

  function bar(share) {
    const space = "http://www.w3.org/2000/svg";
    const svg = document.createElementNS(space, "svg"), rect = document.createElementNS(space, "rect");
    svg.setAttribute("viewBox", "0 0 100 10");
    svg.setAttribute("preserveAspectRatio", "none");
    svg.setAttribute("aria-hidden", "true");
    rect.setAttribute("width", 100 * share);
    rect.setAttribute("height", 10);
    svg.append(rect);
    return svg;
  }

  // Corrections

  function showLabels() {
    const { labels, several_labels: several, corrects, to_label: walks } = state.about;
    get("correction").hidden = !corrects;
    get("ask").textContent = walks ? "Choose the label." : "Not right? Choose the label.";
    if (!corrects) return;
    if (labels.length > MOST_BUTTONS && !several) {
      const list = element("select", "", { "aria-label": "Label" });
      list.append(...labels.map((label) => element("option", label, { value: label })));
      get("labels").replaceChildren(list, element("button", "Choose", { type: "submit" }));
      return;
    }
    const buttons = labels.map((label, number) => {
      const key = walks && number < 9 ? `${number + 1} ` : "";
      const made = element("button", key + label, { type: "button", "data-label": label, "aria-pressed": "false" });
      made.addEventListener("click", () => several ? toggle(made) : attempt(() => correct(label)));
      return made;
    });
    if (several) buttons.push(element("button", "Keep these", { type: "submit" }));
    get("labels").replaceChildren(...buttons);
  }

  const labelled = () => [...get("labels").querySelectorAll("[data-label]")];
  const toggle = (made) => made.setAttribute("aria-pressed", String(made.getAttribute("aria-pressed") !== "true"));

  function pressed(labels) {
    for (const made of labelled()) made.setAttribute("aria-pressed", String(labels.includes(made.dataset.label)));
  }

  async function correct(label) {
    await ask("corrections", { input: state.sent, label });
    pressed([label].flat());
    get("saved").textContent = `Kept: ${[label].flat().join(", ") || "no label"}.`;
    if (state.about.to_label && state.place + 1 < state.about.to_label) await go(state.place + 1);
  }

  // Examples of a list

  async function go(place) {
    const one = await ask(`to-label/${place}`);
    state.place = place;
    get("position").textContent = `${place + 1} of ${state.about.to_label}${one.labels.length ? ", labelled" : ""}`;
    get("back").disabled = place === 0;
    get("on").disabled = place + 1 === state.about.to_label;
    choose(null);
    for (const area of areas()) area.value = one.input[area.dataset.column] ?? "";
    await predict();
    if (one.labels.length && place === state.place) pressed(one.labels);
  }

  // Events

  get("form").addEventListener("submit", (event) => { event.preventDefault(); attempt(predict); });
  get("access").addEventListener("submit", (event) => {
    event.preventDefault();
    state.token = get("token").value;
    attempt(start);
  });
  get("correction").addEventListener("submit", (event) => {
    event.preventDefault();
    const list = get("labels").querySelector("select");
    const chosen = labelled().filter((made) => made.getAttribute("aria-pressed") === "true");
    attempt(() => correct(list ? list.value : chosen.map((made) => made.dataset.label)));
  });
  get("file").addEventListener("change", () => choose(get("file").files[0]));
  get("clear").addEventListener("click", () => {
    get("form").reset();
    choose(null);
    get("result").hidden = true;
    get("problem").textContent = "";
    (areas()[0] ?? get("file")).focus();
  });
  get("explain").addEventListener("click", () => attempt(async () => {
    get("why").srcdoc = await ask("explain", { input: state.sent }, "text/html");
    get("why").hidden = false;
  }));
  get("back").addEventListener("click", () => attempt(() => go(state.place - 1)));
  get("on").addEventListener("click", () => attempt(() => go(state.place + 1)));
  addEventListener("dragover", (event) => { event.preventDefault(); get("drop").classList.add("over"); });
  addEventListener("dragleave", () => get("drop").classList.remove("over"));
  addEventListener("drop", (event) => {
    event.preventDefault();
    get("drop").classList.remove("over");
    const text = event.dataTransfer.getData("text/plain");
    if (event.dataTransfer.files.length) choose(event.dataTransfer.files[0]);
    else if (text && areas().length) areas()[0].value = text;
  });
  addEventListener("paste", (event) => { if (event.clipboardData?.files.length) choose(event.clipboardData.files[0]); });
  addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) attempt(predict);
    const writing = /^(textarea|input|select)$/i.test(event.target.tagName ?? "");
    if (!state.about?.to_label || writing || event.ctrlKey || event.altKey || event.metaKey) return;
    if (/^[1-9]$/.test(event.key)) labelled()[event.key - 1]?.click();
    if (event.key === "ArrowLeft") get("back").click();
    if (event.key === "ArrowRight") get("on").click();
  });
  attempt(start);
}
