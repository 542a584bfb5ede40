// Stick, keys and gamepads for the page of `fleetfoot play`. What is said over /input stands in play/page.py.
"use strict";
(() => {
  const DEAD = 0.12; // of a gamepad's stick
  // Held keys, and what they ask for: forward, to the left, turning left.
  const STEER = {
    KeyW: [1, 0, 0], ArrowUp: [1, 0, 0], KeyS: [-1, 0, 0], ArrowDown: [-1, 0, 0],
    KeyA: [0, 1, 0], KeyD: [0, -1, 0],
    KeyQ: [0, 0, 1], ArrowLeft: [0, 0, 1], KeyE: [0, 0, -1], ArrowRight: [0, 0, -1],
  };
  const PRESS = { Space: "pause", KeyR: "restart", KeyP: "push", Period: "step" };
  const PAD_PRESS = { 0: "push", 1: "restart", 9: "pause" }; // A, B, start of the standard layout

  const page = { socket: null, config: null, state: null, held: new Set(), pads: {} };
  window.fleetfoot = page; // for tests, and for the curious

  const send = (what) => {
    if (page.socket && page.socket.readyState === WebSocket.OPEN) page.socket.send(JSON.stringify(what));
  };
  const clamp = (value) => Math.max(-1, Math.min(1, value));
  const steer = (from, value) => {
    // Every source has its say only when it moves, so that a resting gamepad does not hold the stick.
    const text = JSON.stringify(value.map((v) => Math.round(clamp(v) * 100) / 100));
    if (page[from] === text) return;
    page[from] = text;
    send({ steer: JSON.parse(text) });
  };

  // Keys. A text field keeps its own; everything else is ours before it is viser's, whose camera has keys too.
  const typing = (target) => target && (target.isContentEditable
    || (/^(input|textarea|select)$/i.test(target.tagName || "") && target.type !== "range" && target.type !== "checkbox"));
  const fromKeys = () => {
    const sum = [0, 0, 0];
    for (const code of page.held) STEER[code].forEach((v, i) => { sum[i] += v; });
    steer("keys", sum);
  };
  const onKey = (event) => {
    if (typing(event.target) || event.ctrlKey || event.metaKey || event.altKey || !page.config) return;
    const down = event.type === "keydown";
    if (page.config.kind === "image") {
      if (event.code === "Space" && !page.config.keys.includes("Space")) { if (down && !event.repeat) send({ press: "pause" }); }
      else if (page.config.keys.includes(event.code)) { if (!event.repeat) send({ key: event.code, down }); }
      else if (PRESS[event.code] && event.code !== "Space") { if (down && !event.repeat) send({ press: PRESS[event.code] }); }
      else return;
    } else if (STEER[event.code]) {
      if (down) page.held.add(event.code); else page.held.delete(event.code);
      fromKeys();
    } else if (PRESS[event.code]) {
      if (down && (!event.repeat || event.code === "Period")) send({ press: PRESS[event.code] });
    } else return;
    event.preventDefault();
    event.stopImmediatePropagation();
  };
  window.addEventListener("keydown", onKey, true);
  window.addEventListener("keyup", onKey, true);
  window.addEventListener("blur", () => {
    if (page.held.size) { page.held.clear(); fromKeys(); }
    if (page.config && page.config.kind === "image") send({ key: "", down: false });
  });

  // Gamepads.
  const dead = (value) => (Math.abs(value) < DEAD ? 0 : value);
  const poll = () => {
    for (const pad of navigator.getGamepads ? navigator.getGamepads() : []) {
      if (!pad) continue;
      const axes = [-dead(pad.axes[1] || 0), -dead(pad.axes[0] || 0), -dead(pad.axes[2] || 0)];
      const before = page.pads[pad.index] || { moved: false, pressed: {} };
      const moves = axes.some((v) => v !== 0);
      if (moves || before.moved) steer("pad", axes);
      const pressed = {};
      for (const [button, name] of Object.entries(PAD_PRESS)) {
        pressed[button] = Boolean(pad.buttons[button] && pad.buttons[button].pressed);
        if (pressed[button] && !before.pressed[button]) send({ press: name });
      }
      page.pads[pad.index] = { moved: moves, pressed };
    }
    requestAnimationFrame(poll);
  };

  // The stick on the screen: a knob in a field, which returns to the middle.
  const makeStick = (parent, id, title, turnsOnly) => {
    const field = document.createElement("div");
    field.className = "ff-stick" + (turnsOnly ? " ff-turn" : "");
    field.id = id;
    field.title = title;
    const knob = document.createElement("div");
    knob.className = "ff-knob";
    field.append(knob);
    const value = [0, 0]; // to the right, up
    const show = () => {
      knob.style.transform = `translate(calc(-50% + ${value[0] * 38}px), calc(-50% - ${value[1] * 38}px))`;
    };
    const move = (event) => {
      const box = field.getBoundingClientRect();
      const half = box.width / 2;
      let x = (event.clientX - box.left - half) / (half * 0.75);
      let y = turnsOnly ? 0 : (box.top + box.height / 2 - event.clientY) / (half * 0.75);
      const long = Math.hypot(x, y);
      if (long > 1) { x /= long; y /= long; }
      value[0] = x; value[1] = y;
      show();
      fromSticks();
    };
    const release = () => { value[0] = value[1] = 0; show(); fromSticks(); };
    field.addEventListener("pointerdown", (event) => {
      field.setPointerCapture(event.pointerId);
      field.classList.add("ff-held");
      move(event);
    });
    field.addEventListener("pointermove", (event) => { if (field.hasPointerCapture(event.pointerId)) move(event); });
    for (const name of ["pointerup", "pointercancel"]) {
      field.addEventListener(name, () => { field.classList.remove("ff-held"); release(); });
    }
    parent.append(field);
    show();
    return value;
  };
  let go = [0, 0];
  let turn = [0, 0];
  const fromSticks = () => steer("stick", [go[1], -go[0], -turn[0]]);

  const build = () => {
    const config = page.config;
    document.title = `${config.title} - fleetfoot`;
    if (document.getElementById("ff-head")) return;
    const head = document.createElement("div");
    head.id = "ff-head";
    head.innerHTML = '<b></b><span id="ff-policy"></span><div id="ff-lines"></div>';
    head.querySelector("b").textContent = config.title;
    document.body.append(head);
    const hint = document.createElement("div");
    hint.id = "ff-hint";
    hint.textContent = config.hint;
    document.body.append(hint);
    if (config.kind === "robot" && config.steers) {
      const row = document.createElement("div");
      row.id = "ff-sticks";
      document.body.append(row);
      go = makeStick(row, "ff-go", "forward and sideways", false);
      turn = makeStick(row, "ff-turn", "turn", true);
    }
  };
  const show = () => {
    const policy = document.getElementById("ff-policy");
    if (!policy || !page.state) return;
    policy.textContent = page.state.policy || "";
    document.getElementById("ff-lines").replaceChildren(...(page.state.lines || []).map(([name, text, mark]) => {
      const line = document.createElement("div");
      if (mark) line.className = `ff-${mark}`;
      const label = document.createElement("i");
      label.textContent = name;
      line.append(label, text);
      return line;
    }));
  };

  const picture = (blob) => {
    let image = document.getElementById("ff-picture");
    if (!image) {
      image = document.createElement("img");
      image.id = "ff-picture";
      document.body.append(image);
    }
    const old = image.src;
    image.src = URL.createObjectURL(blob);
    page.pictures = (page.pictures || 0) + 1;
    if (old) URL.revokeObjectURL(old);
  };
  const connect = () => {
    const scheme = location.protocol === "https:" ? "wss" : "ws";
    const socket = new WebSocket(`${scheme}://${location.host}/input`);
    page.socket = socket;
    socket.onmessage = (event) => {
      if (event.data instanceof Blob) { picture(event.data); return; }
      const said = JSON.parse(event.data);
      if (said.config) { page.config = said.config; build(); }
      if (said.state) { page.state = said.state; show(); }
    };
    socket.onclose = () => setTimeout(connect, 1000);
  };
  window.addEventListener("DOMContentLoaded", () => { connect(); poll(); });
})();
