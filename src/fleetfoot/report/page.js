// Draws the figures of a report from the numbers in #data, and hides, shows, and refreshes them.
(() => {
  "use strict";
  const nonce = document.currentScript.nonce;
  const live = "live" in document.documentElement.dataset;
  const dashes = ["solid", "dash", "dot", "dashdot"]; // change after ten groups, when the colours repeat
  const colours = 10;
  const hidden = new Set(); // by name: on a live page the numbers change when a run appears
  const paperWidth = 690; // pixels between the margins of an A4 page
  let data = null;

  const byId = (id) => document.getElementById(id);
  // Plotly reads a few tags and entities in texts; names of groups and runs are only text.
  const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const colour = (group) => getComputedStyle(document.documentElement).getPropertyValue(`--c${group % colours}`).trim();
  const faded = (hex, share) => hex + Math.round(255 * share).toString(16).padStart(2, "0");
  const groupKey = (group) => `group ${data.groups[group]}`;
  const runKey = (run) => `run ${data.runs[run]}`;
  const shown = (series) => !hidden.has(groupKey(series.group)) && !(series.run !== undefined && hidden.has(runKey(series.run)));

  function traces(figure) {
    const found = [];
    const dash = (group) => dashes[Math.floor(group / colours) % dashes.length];
    const hover = "%{fullData.name}<br>%{x:,.4~s}: <b>%{y:,.4~g}</b><extra></extra>";
    const alone = !figure.means.length;
    for (const one of figure.lines) {
      const only = alone || !figure.means.some((mean) => mean.group === one.group);
      found.push({
        x: one.x, y: one.y, name: plain(data.runs[one.run]), hovertemplate: hover, visible: shown(one), meta: one,
        mode: one.x.length === 1 ? "markers" : "lines",
        line: { color: colour(one.group), width: only ? 1.8 : 1, dash: dash(one.group) },
        opacity: only ? 0.95 : 0.4,
      });
    }
    for (const one of figure.means) {
      if (one.low) {
        found.push({
          x: [...one.x, ...[...one.x].reverse()], y: [...one.high, ...[...one.low].reverse()], fill: "toself", mode: "lines",
          fillcolor: faded(colour(one.group), 0.16), line: { width: 0 }, hoverinfo: "skip", visible: shown(one), meta: one,
        });
      }
      found.push({
        x: one.x, y: one.y, name: plain(data.groups[one.group]), hovertemplate: hover, visible: shown(one), meta: one,
        mode: one.x.length <= 30 ? "lines+markers" : "lines", marker: { size: 5, color: colour(one.group) },
        line: { color: colour(one.group), width: 2.6, dash: dash(one.group) },
      });
    }
    return found;
  }

  function layout(figure, width) {
    const axis = { zeroline: false, automargin: true, showline: false, ticks: "", nticks: 6, exponentformat: "SI" };
    return {
      width, height: figure.kind === "diagnostic" ? 230 : 340, autosize: width === undefined,
      margin: { l: 46, r: 10, t: 12, b: figure.x_title ? 44 : 30 }, showlegend: false, hovermode: "closest", dragmode: "zoom",
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", uirevision: `${figure.id} ${figure.label}`,
      font: { family: getComputedStyle(document.body).fontFamily, size: 12 },
      xaxis: { ...axis, title: { text: figure.x_title, standoff: 10 } },
      yaxis: { ...axis, title: { text: figure.y_title, standoff: 8 } },
    };
  }

  // Named one by one: Plotly's own choice holds a button that sends the figure to a server.
  const buttons = [["zoom2d", "pan2d", "resetScale2d"], ["toImage"]];
  const options = { displaylogo: false, responsive: true, displayModeBar: "hover", modeBarButtons: buttons };

  function figures() {
    const all = data.figures.slice();
    const name = byId("metric")?.value;
    if (name && data.metrics[name]) {
      all.push({ id: "explorer", kind: "curve", label: name, x_title: "environment steps", y_title: plain(name), means: [], lines: data.metrics[name] });
    }
    return all.filter((figure) => byId(figure.id));
  }

  function draw(width = () => undefined) {
    for (const figure of figures()) {
      Plotly.react(figure.id, traces(figure), layout(figure, width(figure)), options);
    }
  }

  function choices() {
    const select = byId("metric");
    const chosen = select.dataset.chosen ?? (["critic/loss", "episode/return"].find((name) => name in data.metrics) ?? "");
    select.replaceChildren(...Object.keys(data.metrics).map((name) => new Option(name, name, false, name === chosen)));
    select.closest(".explore").hidden = byId("explorer").hidden = select.options.length === 0;
    select.addEventListener("change", () => { select.dataset.chosen = select.value; draw(); });
  }

  function chips() {
    for (const chip of document.querySelectorAll(".chip")) {
      const key = chip.dataset.group === undefined ? runKey(chip.dataset.run) : groupKey(chip.dataset.group);
      chip.setAttribute("aria-pressed", String(!hidden.has(key)));
      chip.addEventListener("click", () => {
        hidden.has(key) ? hidden.delete(key) : hidden.add(key);
        chip.setAttribute("aria-pressed", String(!hidden.has(key)));
        draw();
      });
    }
  }

  function start() {
    data = JSON.parse(byId("data").textContent);
    choices();
    chips();
    draw();
  }

  function theme() {
    const root = document.documentElement;
    byId("theme").addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
    });
  }

  function paper() {
    let opened = [];
    addEventListener("beforeprint", () => {
      opened = [...document.querySelectorAll("details:not([open]):not(.whole)")];
      opened.forEach((one) => { one.open = true; });
      draw((figure) => (figure.kind === "diagnostic" ? (paperWidth - 16) / 3 : figure.id === "explorer" ? paperWidth : (paperWidth - 8) / 2));
    });
    addEventListener("afterprint", () => { opened.forEach((one) => { one.open = false; }); draw(); });
  }

  async function unpacked(text) {
    const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  async function load() {
    if (live) return;
    const tag = document.createElement("script");
    tag.nonce = nonce;
    tag.textContent = await unpacked(byId("plotly").textContent);
    document.head.append(tag);
  }

  async function refresh(version) {
    const answer = await fetch(`content?after=${encodeURIComponent(version)}`);
    if (answer.status === 204) return version;
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    const fresh = await answer.json();
    const open = new Set([...document.querySelectorAll("details[open] > summary")].map((one) => one.textContent));
    const chosen = byId("metric")?.value;
    const place = scrollY;
    // Plotly keeps the zoom with the element.
    const named = (figure) => `${figure.id} ${figure.getAttribute("aria-label")}`;
    const drawn = new Map([...document.querySelectorAll("#main .figure")].map((one) => [named(one), one]));
    // A film goes on playing if its element is back before this function ends.
    const films = new Map([...document.querySelectorAll("#films [src]")].map((one) => [one.getAttribute("src"), one]));
    byId("data").textContent = JSON.stringify(fresh.data);
    byId("main").innerHTML = fresh.html; // made by the same template as the page: all text in it is escaped
    for (const one of document.querySelectorAll("#main .figure")) {
      const before = drawn.get(named(one));
      if (before) one.replaceWith(before);
      drawn.delete(named(one));
    }
    drawn.forEach((one) => Plotly.purge(one));
    for (const one of document.querySelectorAll("#films [src]")) {
      const before = films.get(one.getAttribute("src"));
      if (before) one.replaceWith(before);
    }
    if (chosen) byId("metric").dataset.chosen = chosen;
    for (const one of document.querySelectorAll("details > summary")) one.parentElement.open = open.has(one.textContent);
    start();
    scrollTo(0, place);
    return fresh.version;
  }

  async function follow() {
    const every = 2000;
    let version = "";
    for (;;) {
      try {
        if (!document.hidden) {
          version = await refresh(version);
          byId("live").textContent = `live, read ${new Date().toLocaleTimeString()}`;
        }
      } catch {
        byId("live").textContent = "the dashboard has stopped";
      }
      await new Promise((done) => setTimeout(done, every));
    }
  }

  load().then(() => {
    theme();
    paper();
    start();
    document.documentElement.dataset.ready = "";
    if (live) follow();
  });
})();
