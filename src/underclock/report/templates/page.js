// Timelines, sliders over stored frontiers, and tables to sort, search and save. All data came with
// the page; nothing is worked out anew but sums of what is drawn together.
"use strict";

const byId = (id) => document.getElementById(id);
const make = (tag, attributes = {}, ...children) => {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
};
const escaped = (text) =>
  String(text).replace(/[&<>"]/g, (sign) => `&#${sign.charCodeAt(0)};`);

const unpacked = async () => {
  const bytes = Uint8Array.from(atob(byId("data").textContent), (each) => each.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
};

// ---- Numbers in words

const minus = (text) => text.replace("-", "−");
const inUnits = (units) => (value) => {
  if (value === null) return "–";
  const [unit, size] = units.find((each) => Math.abs(value) >= each[1]) ?? units.at(-1);
  const scaled = value / size;
  const shown = Math.abs(scaled) >= 100 ? scaled.toFixed(0) : scaled.toPrecision(3);
  return minus(value === 0 ? `0 ${units.at(-1)[0]}` : `${shown}\u00a0${unit}`);
};
const inSeconds = inUnits([["s", 1], ["ms", 1e-3], ["µs", 1e-6]]);
const inJoules = inUnits([["MJ", 1e6], ["kJ", 1e3], ["J", 1], ["mJ", 1e-3]]);
const change = (fraction) => {
  const percent = Math.round(1e4 * fraction) / 100;
  return minus(`${percent < 0 ? "" : "+"}${percent.toFixed(2)}\u00a0%`);
};
const setters = { 1: "", 0: ", set by the driver", "-1": "" };

// ---- A timeline: bands of tracks of boxes

// Places in a list, which come as differences.
const places = (differences) => {
  let at = 0;
  return differences.map((each) => (at += each));
};

const readTrack = (track) => {
  const [names, lasts, core, setBy, mem, power] = track.states;
  const name = places(names);
  const count = track.order.length;
  const [from, to] = [new Float64Array(count), new Float64Array(count)];
  const which = new Uint32Array(count);
  // Sums over boxes from the first: means over any of them are differences.
  const sums = [0, 1, 2, 3, 4].map(() => new Float64Array(count + 1));
  const [known, cycles, driven, powered, joules] = sums;
  let [at, state] = [0, 0];
  for (let i = 0; i < count; i++) {
    state += track.order[i];
    which[i] = state;
    at += track.gaps[i] ?? 0;
    from[i] = at;
    at += lasts[state];
    to[i] = at;
    for (const sum of sums) sum[i + 1] = sum[i];
    if (core[state] !== null) {
      known[i + 1] += lasts[state];
      cycles[i + 1] += lasts[state] * core[state];
    }
    if (setBy[state] === 0) driven[i + 1] += lasts[state];
    if (power[state] !== null) {
      powered[i + 1] += lasts[state];
      joules[i + 1] += lasts[state] * power[state];
    }
  }
  const groups = track.groups.map(([label, names, runs]) => {
    const [begins, ends] = [new Float64Array(runs.length), new Float64Array(runs.length)];
    let first = 0;
    runs.forEach((run, i) => {
      begins[i] = from[first];
      first += run;
      ends[i] = to[first - 1];
    });
    return { label, names, from: begins, to: ends };
  });
  const over = (sum, first, last) => sum[last] - sum[first];
  return {
    label: track.label, leaf: track.leaf, count, from, to, which, name, lasts, core, setBy, mem, power, groups,
    hasPower: joules[count] > 0,
    end: count ? to[count - 1] : 0,
    mhz: (first, last) => over(cycles, first, last) / over(known, first, last),
    isKnown: (first, last) => over(known, first, last) > 0,
    isDriven: (first, last) => over(driven, first, last) > 0.5 * (to[last - 1] - from[first]),
    watts: (first, last) =>
      over(joules, first, last) / Math.max(over(powered, first, last), 1e-12),
  };
};

// The first place at which an ascending row is above a value.
const above = (row, value) => {
  let [low, high] = [0, row.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row[middle] > value) high = middle;
    else low = middle + 1;
  }
  return low;
};

const LEAST_PX = 1.5; // narrower boxes are drawn together
const [NAME_PX, CLOCK_PX, RANK_PX, POWER_PX, TITLE_PX, AXIS_PX] = [19, 46, 22, 54, 26, 24];
const COLOURS = 8;

class Timeline {
  constructor(place, data) {
    this.place = place;
    this.texts = data.texts;
    this.bands = data.bands.map((band) => ({ ...band, tracks: band.tracks.map(readTrack) }));
    this.tracks = this.bands.flatMap((band) => band.tracks);
    this.cap = data.cap_w ?? null;
    this.end = Math.max(...this.tracks.map((track) => track.end));
    const clocks = this.tracks.flatMap((track) => track.core.filter((mhz) => mhz !== null));
    this.low = clocks.reduce((a, b) => Math.min(a, b), Infinity);
    this.high = clocks.reduce((a, b) => Math.max(a, b), -Infinity);
    this.most = this.tracks.flatMap((track) => track.power).reduce((a, b) => Math.max(a, b ?? 0), 0);
    if (this.cap) this.most = Math.min(Math.max(1.08 * this.cap, this.most), 1.6 * this.cap);
    this.view = [0, this.end];
    this.cursor = null; // a track and a box of it
    this.build(place.dataset.label);
    this.draw();
  }

  build(label) {
    this.box = make("div", {
      class: "stage", tabindex: "0", role: "slider", "aria-label": label,
      "aria-valuemin": "0", "aria-valuemax": String(this.tracks[0].count - 1),
      "aria-valuenow": "0", "aria-valuetext": "the whole step", "aria-describedby": "keys",
    });
    this.drawing = make("div");
    this.mark = make("div", { class: "cursor", hidden: "" });
    this.picked = make("div", { class: "picked", hidden: "" });
    this.tip = make("div", { class: "tip", hidden: "" });
    this.box.append(this.drawing, this.mark, this.picked, this.tip);
    const bar = make("div", { class: "bar" });
    const says = { "−": "Zoom out", "+": "Zoom in", "◀": "Earlier", "▶": "Later" };
    const does = { "−": () => this.zoom(2), "+": () => this.zoom(0.5), "◀": () => this.pan(-0.5), "▶": () => this.pan(0.5) };
    for (const [sign, words] of Object.entries(says)) {
      const button = make("button", { type: "button", "aria-label": words, title: words }, sign);
      button.addEventListener("click", does[sign]);
      bar.append(button);
    }
    const whole = make("button", { type: "button" }, "Whole");
    whole.addEventListener("click", () => this.show(0, this.end));
    this.seen = make("output", { class: "soft" });
    bar.append(whole, this.seen);
    this.place.append(bar, this.legend(), this.box);
    this.listen();
  }

  legend() {
    const legend = make("div", { class: "legend" });
    if (this.low <= this.high) {
      const ramp = make("span", { class: "ramp", "aria-hidden": "true" });
      for (let i = 0; i < COLOURS; i++) {
        ramp.append(make("i", { class: `b${i}`, style: `height:${5 + (11 * (i + 1)) / COLOURS}px` }));
      }
      legend.append(make("span", {}, `${Math.round(this.low)} `, ramp, ` ${Math.round(this.high)} MHz: taller is faster`));
    }
    if (this.tracks.some((track) => track.setBy.includes(0))) {
      legend.append(make("span", {}, make("i", { class: "hatched", "aria-hidden": "true" }), " hatched: the driver sets the clock"));
    }
    if (this.cap && this.tracks.some((track) => track.hasPower)) {
      legend.append(make("span", {}, make("i", { class: "capped", "aria-hidden": "true" }), ` dashed: the power limit, ${this.cap} W`));
    }
    return legend;
  }

  // -- Where things are

  get left() { return this.width < 560 ? 54 : 74; }
  get perSecond() { return (this.width - this.left - 6) / (this.view[1] - this.view[0]); }
  x(seconds) { return this.left + (seconds - this.view[0]) * this.perSecond; }
  seconds(px) { return this.view[0] + (px - this.left) / this.perSecond; }
  get least() { // of what may be seen at once: a few of the shortest boxes
    return Math.max(this.end * 1e-6, 1e-7);
  }

  show(from, to) {
    const span = Math.min(this.end, Math.max(this.least, to - from));
    const begin = Math.min(Math.max(0, from), this.end - span);
    this.view = [begin, begin + span];
    this.later();
  }
  zoom(factor, about) {
    const [from, to] = this.view;
    const at = about ?? this.middle();
    this.show(at - (at - from) * factor, at + (to - at) * factor);
  }
  pan(part) {
    const move = part * (this.view[1] - this.view[0]);
    this.show(this.view[0] + move, this.view[1] + move);
  }
  middle() {
    const [from, to] = this.view;
    if (this.cursor) {
      const { track, at } = this.cursor;
      const middle = (track.from[at] + track.to[at]) / 2;
      if (middle >= from && middle <= to) return middle;
    }
    return (from + to) / 2;
  }
  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  // -- Drawing

  // Boxes in sight, those narrower than a pixel and a half together: calls with places in pixels.
  each(row, call) {
    const [from, to] = this.view;
    let first = above(row.to, from);
    while (first < row.from.length && row.from[first] < to) {
      const x0 = this.x(row.from[first]);
      let last = first + 1;
      if (this.x(row.to[first]) - x0 < LEAST_PX) {
        last = Math.max(last, above(row.to, this.seconds(x0 + LEAST_PX)));
        // What waits in between is not drawn over.
        while (last > first + 1 && this.x(row.from[last - 1]) - x0 > 2 * LEAST_PX) last--;
      }
      const begins = Math.max(x0, this.left);
      call(begins, Math.min(this.x(row.to[last - 1]), this.width - 6), first, last);
      first = last;
    }
  }

  words(x0, x1, y, text, kind = "") {
    const room = Math.floor((x1 - x0 - 6) / 6.6);
    if (room < Math.min(3, text.length)) return "";
    let shown = text;
    if (text.length > room) shown = kind === "whole" ? "" : `${text.slice(0, room - 1)}…`;
    return shown && `<text x="${(x0 + x1) / 2}" y="${y}" text-anchor="middle">${escaped(shown)}</text>`;
  }

  names(row, y, name) {
    let [plain, many, words] = ["", "", ""];
    this.each(row, (x0, x1, first, last) => {
      const box = `M${x0.toFixed(1)} ${y}h${Math.max(x1 - x0 - 0.6, 0.5).toFixed(1)}v${NAME_PX - 3}H${x0.toFixed(1)}z`;
      if (last > first + 1) {
        many += box;
      } else {
        plain += box;
        words += this.words(x0, x1, y + 12.5, this.texts[name(first)]);
      }
    });
    return `<path class="group" d="${plain}"/><path class="many" d="${many}"/>${words}`;
  }

  clocks(track, y, height) {
    const paths = Array(COLOURS).fill("");
    let [none, hatch, words, label] = ["", "", "", null];
    const flush = () => {
      if (!label) return;
      const { x0, x1, tall, part, driven, text } = label;
      const box = `M${x0.toFixed(2)} ${y + height}H${Math.max(x1, x0 + 0.7).toFixed(2)}v${-tall.toFixed(1)}H${x0.toFixed(2)}z`;
      if (part === null) none += box;
      else paths[Math.min(COLOURS - 1, Math.floor(part * COLOURS))] += box;
      if (driven) hatch += box;
      words += this.words(x0, x1, y + height - 5, text, "whole");
      label = null;
    };
    this.each(track, (x0, x1, first, last) => {
      const driven = track.isDriven(first, last);
      const mhz = track.isKnown(first, last) ? Math.round(track.mhz(first, last)) : null;
      if (label && label.mhz === mhz && label.driven === driven && x0 - label.x1 < 0.5) {
        label.x1 = x1;
        return;
      }
      flush();
      const span = this.high - this.low;
      const part = mhz === null ? null : span > 0 ? (mhz - this.low) / span : 1;
      const tall = part === null ? height : height * (height > RANK_PX ? 0.3 + 0.7 * part : 0.55 + 0.45 * part);
      label = { x0, x1, mhz, driven, part, tall, text: mhz === null ? (driven ? "auto" : "") : String(mhz) };
    });
    flush();
    const bars = paths.map((path, i) => (path ? `<path class="c${i}" d="${path}"/>` : "")).join("");
    return `${bars}<path class="none" d="${none}"/><path fill="url(#hatch)" d="${hatch}"/>${words}`;
  }

  power(track, y) {
    const at = (watts) => (y + POWER_PX - (Math.min(watts, this.most) / this.most) * (POWER_PX - 6)).toFixed(1);
    let line = "";
    this.each(track, (x0, x1, first, last) => {
      const height = at(track.watts(first, last));
      line += `${line ? "L" : "M"}${x0.toFixed(1)} ${height}H${x1.toFixed(1)}`;
    });
    const right = this.width - 6;
    let drawn = `<path class="watts" d="${line}"/>`;
    if (line) {
      const [begins, ends] = [Math.max(this.left, this.x(0)), Math.min(right, this.x(track.end))];
      drawn = `<path class="area" d="${line}V${y + POWER_PX}H${begins.toFixed(1)}z" data-end="${ends}"/>${drawn}`;
    }
    if (this.cap) drawn += `<path class="cap" d="M${this.left} ${at(this.cap)}H${right}"/>`;
    const top = this.cap ?? this.most;
    return `${drawn}<text x="${this.left - 5}" y="${Number(at(top)) + 5}" text-anchor="end">${Math.round(top)} W</text>`;
  }

  draw() {
    this.width = Math.max(280, this.box.clientWidth || 880);
    this.rows = []; // what is at which height: a track each
    let [y, drawn] = [4, ""];
    const labelled = (text, height, draw, row) => {
      const at = y + height / 2 + 2;
      drawn += draw;
      if (text) drawn += `<text class="label" x="${this.left - 5}" y="${at}" text-anchor="end">${escaped(text)}</text>`;
      this.rows.push({ from: y, to: y + height, ...row });
      y += height;
    };
    for (const band of this.bands) {
      drawn += `<text class="title" x="0" y="${y + 15}">${escaped(band.title)}</text>`;
      y += TITLE_PX - 4;
      for (const track of band.tracks) {
        const short = this.width < 560;
        for (const group of track.groups) {
          labelled(group.label, NAME_PX, this.names(group, y, (i) => group.names[i]), { track, group });
        }
        if (track.leaf) {
          labelled(track.leaf, NAME_PX, this.names(track, y, (i) => track.name[track.which[i]]), { track });
        }
        const tall = track.groups.length ? CLOCK_PX : RANK_PX;
        const label = track.label || (short ? "MHz" : "core MHz");
        labelled(label, tall + 3, this.clocks(track, y, tall), { track });
        if (track.hasPower) {
          labelled("", POWER_PX + 4, this.power(track, y), { track });
        }
      }
      y += 8;
    }
    drawn = this.axis(y) + drawn;
    y += AXIS_PX;
    this.drawing.innerHTML = `<svg viewBox="0 0 ${this.width} ${y}" width="${this.width}" height="${y}" aria-hidden="true"><defs><pattern id="hatch" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><path d="M0 0V6" class="stroke"/></pattern></defs>${drawn}</svg>`;
    const [from, to] = this.view;
    const part = (to - from) / this.end;
    this.seen.textContent = part > 0.9999 ? `all of ${inSeconds(this.end)}` : `${inSeconds(to - from)} from ${inSeconds(from)} on, ${(100 * part).toPrecision(2)} % of it`;
    this.place.dataset.from = from;
    this.place.dataset.to = to;
    this.point();
  }

  axis(y) {
    const [from, to] = this.view;
    const least = (to - from) / (this.width < 560 ? 3 : 8);
    const power = 10 ** Math.floor(Math.log10(least));
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least);
    const [unit, size] = step >= 0.1 ? ["s", 1] : step >= 1e-4 ? ["ms", 1e-3] : ["µs", 1e-6];
    const digits = Math.max(0, -Math.floor(Math.log10(step / size) + 1e-9));
    let drawn = "";
    for (let n = Math.ceil(from / step); n * step <= to; n++) {
      const x = this.x(n * step).toFixed(1);
      drawn += `<path class="tick" d="M${x} 0V${y + 3}"/><text x="${x}" y="${y + 16}" text-anchor="middle">${((n * step) / size).toFixed(digits)} ${unit}</text>`;
    }
    return drawn;
  }

  // -- Pointing

  about({ track, at }) {
    const state = track.which[at];
    const groups = track.groups.map((group) => this.texts[group.names[above(group.to, track.from[at])]]);
    const lines = [this.texts[track.name[state]]];
    if (groups.length) lines.push(groups.join(" › "));
    lines.push(`${inSeconds(track.lasts[state])} at ${inSeconds(track.from[at])}, ${at + 1} of ${track.count}`);
    const [core, mem] = [track.core[state], track.mem[state]];
    const said = [];
    if (core !== null) said.push(`core ${Math.round(core)} MHz${setters[track.setBy[state]]}`);
    else if (track.setBy[state] === 0) said.push("core clock set by the driver");
    if (mem !== null) said.push(`memory ${mem} MHz`);
    if (track.power[state] !== null) said.push(`${Math.round(track.power[state])} W`);
    if (said.length) lines.push(said.join(", "));
    return lines;
  }

  // Show what the cursor is on, next to it.
  point() {
    const { cursor } = this;
    for (const part of [this.mark, this.tip]) part.hidden = !cursor;
    if (!cursor) return;
    const { track, at } = cursor;
    const [x0, x1] = [Math.max(this.left, this.x(track.from[at])), Math.min(this.width, this.x(track.to[at]))];
    const mine = this.rows.filter((row) => row.track === track);
    const [top, bottom] = [mine[0].from, mine.at(-1).to];
    if (x1 < this.left || x0 > this.width) {
      this.mark.hidden = this.tip.hidden = true;
      return;
    }
    Object.assign(this.mark.style, { left: `${x0}px`, top: `${top}px`, width: `${Math.max(2, x1 - x0)}px`, height: `${bottom - top}px` });
    const lines = this.about(cursor);
    this.tip.replaceChildren(...lines.map((line, i) => make(i ? "div" : "strong", {}, line)));
    const wide = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(x0, this.width - wide - 4))}px`;
    this.tip.style.top = `${bottom + 4}px`;
    this.box.setAttribute("aria-valuemax", String(track.count - 1));
    this.box.setAttribute("aria-valuenow", String(at));
    const band = this.bands.find((each) => each.tracks.includes(track)).title;
    this.box.setAttribute("aria-valuetext", [band, ...lines].join("; "));
  }

  under(event) {
    const frame = this.box.getBoundingClientRect();
    return [event.clientX - frame.left, event.clientY - frame.top];
  }

  hover(event) {
    const [x, y] = this.under(event);
    const row = this.rows.find((each) => y >= each.from && y < each.to);
    this.cursor = null;
    if (row && x >= this.left) {
      const at = above(row.track.to, this.seconds(x));
      if (at < row.track.count && row.track.from[at] <= this.seconds(x)) this.cursor = { track: row.track, at };
    }
    this.point();
  }

  // Move the cursor to the next box that is drawn by itself, and keep it in sight.
  step(by) {
    const track = this.cursor?.track ?? this.tracks[0];
    let at = this.cursor?.at ?? Math.min(above(track.to, this.view[0]), track.count - 1);
    if (this.cursor) {
      const past = by > 0 ? track.from[at] + LEAST_PX / this.perSecond : track.to[at] - LEAST_PX / this.perSecond;
      at = by > 0 ? Math.max(at + 1, above(track.to, past)) : Math.min(at - 1, above(track.to, past));
    }
    this.put(track, at);
  }
  put(track, wanted) {
    const at = Math.min(Math.max(0, wanted), track.count - 1);
    this.cursor = { track, at };
    const [from, to] = this.view;
    const middle = (track.from[at] + track.to[at]) / 2;
    if (middle < from || middle > to) this.show(middle - (to - from) / 2, middle + (to - from) / 2);
    this.point();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { track = this.tracks[0], at = 0 } = this.cursor ?? {};
    const other = (by) => {
      const place = this.tracks.indexOf(track) + by;
      const next = this.tracks[Math.min(Math.max(0, place), this.tracks.length - 1)];
      this.put(next, above(next.to, track.from[at]));
    };
    const does = {
      ArrowRight: () => this.step(1), ArrowLeft: () => this.step(-1),
      ArrowDown: () => other(1), ArrowUp: () => other(-1),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      0: () => this.show(0, this.end),
      PageDown: () => this.pan(0.8), PageUp: () => this.pan(-0.8),
      Home: () => this.put(track, 0), End: () => this.put(track, track.count - 1),
      Escape: () => { this.cursor = null; this.show(0, this.end); },
    }[event.key];
    if (!does) return;
    event.preventDefault();
    does();
  }

  listen() {
    const { box } = this;
    const fingers = new Map();
    let begun = null; // where a drag began
    const spread = () => {
      const [a, b] = [...fingers.values()];
      return Math.abs(a - b);
    };
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("focus", () => { if (!this.cursor && !begun) this.step(0); });
    box.addEventListener("blur", () => { this.cursor = null; this.point(); });
    box.addEventListener("wheel", (event) => {
      if (document.activeElement !== box && !event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan(event.deltaX / this.width);
      else this.zoom(Math.exp(0.002 * event.deltaY), this.seconds(this.under(event)[0]));
    }, { passive: false });
    box.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const [x] = this.under(event);
      fingers.set(event.pointerId, x);
      begun = { x, view: [...this.view], spread: fingers.size > 1 ? spread() : 0 };
      if (event.pointerType !== "touch") box.setPointerCapture(event.pointerId);
    });
    box.addEventListener("pointermove", (event) => {
      const [x] = this.under(event);
      if (!begun || !fingers.has(event.pointerId)) return this.hover(event);
      fingers.set(event.pointerId, x);
      if (event.pointerType === "touch") {
        this.view = [...begun.view];
        if (begun.spread) return this.zoom(begun.spread / Math.max(spread(), 10), this.seconds(begun.x));
        return this.pan((begun.x - x) / this.width);
      }
      const [low, high] = [Math.min(begun.x, x), Math.max(begun.x, x)];
      this.picked.hidden = high - low < 4;
      Object.assign(this.picked.style, { left: `${low}px`, width: `${high - low}px` });
    });
    const end = (event) => {
      fingers.delete(event.pointerId);
      const was = begun;
      begun = null;
      this.picked.hidden = true;
      if (!was || event.type !== "pointerup") return;
      const [x] = this.under(event);
      if (event.pointerType === "touch" && Math.abs(x - was.x) < 4) return this.hover(event);
      if (event.pointerType === "touch" || Math.abs(x - was.x) < 4) return;
      this.show(this.seconds(Math.min(x, was.x)), this.seconds(Math.max(x, was.x)));
    };
    for (const kind of ["pointerup", "pointercancel"]) box.addEventListener(kind, end);
    box.addEventListener("pointerleave", () => {
      if (begun || document.activeElement === box) return;
      this.cursor = null;
      this.point();
    });
    new ResizeObserver(() => { if (box.clientWidth && box.clientWidth !== this.width) this.later(); }).observe(box);
  }
}

// ---- Sliders over stored frontiers

const followLines = (panel, data) => {
  const { lines, evidence } = data;
  const [budget, latency] = ["budget", "latency"].map((name) => panel.querySelector(`[name="${name}"]`));
  const said = panel.querySelector("output");
  const what = `${"aeiou".includes(said.dataset.what[0]) ? "n" : ""} ${said.dataset.what}`;
  const marks = [...document.querySelectorAll("#figure-frontier svg")].map((drawing) => {
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    mark.setAttribute("r", "7");
    mark.setAttribute("class", "mark");
    const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    line.setAttribute("class", "followed");
    drawing.append(line, mark);
    const place = (axis) => {
      const [low, high, start, end] = drawing.dataset[axis].split(" ").map(Number);
      return (value) => start + ((100 * value - low) / (high - low)) * (end - start);
    };
    return { mark, line, x: place("x"), y: place("y") };
  });
  const show = () => {
    const [name, points] = lines[latency ? Number(latency.value) : 0];
    const wanted = Number(budget.value);
    const time = Math.min(Math.max(wanted, points[0][0]), points.at(-1)[0]);
    const next = Math.max(1, points.findIndex((point) => point[0] >= time - 1e-12));
    const [before, after] = [points[next - 1], points[next]];
    const part = (time - before[0]) / (after[0] - before[0] || 1);
    const energy = before[1] + part * (after[1] - before[1]);
    for (const { mark, line, x, y } of marks) {
      line.setAttribute("points", points.map(([a, b]) => `${x(a)},${y(b)}`).join(" "));
      mark.setAttribute("cx", x(time));
      mark.setAttribute("cy", y(energy));
    }
    const [autoS, autoJ] = data.auto;
    const less = wanted < points[0][0] - 1e-9 ? " (the fastest that is stored)" : "";
    budget.setAttribute("aria-valuetext", `${change(wanted)} time`);
    if (latency) latency.setAttribute("aria-valuetext", name);
    panel.querySelector(".time").textContent = change(time) + less;
    if (latency) panel.querySelector(".latency").textContent = name;
    said.textContent = `${change(energy)} energy at ${change(time)} time, ${evidence}: ${inJoules(autoJ * (1 + energy))} and ${inSeconds(autoS * (1 + time))} a${what}.`;
  };
  for (const slider of [budget, latency]) slider?.addEventListener("input", show);
  panel.hidden = false;
  show();
};

// ---- Tables

const MANY = 200; // rows: of more, only those in sight are there
const FEW = 30; // rows: more scroll in a frame of their own
const NAMED = 3; // of the parts of a row; the rest is shown on asking
const PRINTED = 100; // of those, on paper
const words = new Intl.Collator();

class DataTable {
  constructor(place, data, texts) {
    this.place = place;
    this.texts = texts;
    this.columns = data.columns.map((column) => ({ ...column, values: this.read(column) }));
    this.noun = data.noun;
    this.count = data.columns[0].values.length;
    this.rows = [...Array(this.count).keys()];
    this.isLong = this.count > MANY;
    this.wanted = "";
    this.units();
    this.build();
    this.sort(this.columns.findIndex((column) => column.key === data.sort), data.falls);
  }

  read({ kind, values }) {
    if (kind === "text") return places(values).map((place) => this.texts[place]);
    if (kind === "change") return values.map((value) => value && value * 1e-4);
    if (kind !== "parts") return values;
    return values.map(([names, runs]) => places(names).map((place, i) => [this.texts[place], runs[i]]));
  }

  // A column of energies has one unit, so that its numbers can be compared by eye.
  units() {
    for (const column of this.columns.filter((each) => each.kind === "joules")) {
      const most = column.values.reduce((a, b) => Math.max(a, Math.abs(b ?? 0)), 0);
      column.most = most;
      [column.unit, column.size] = [["MJ", 1e6], ["kJ", 1e3], ["J", 1], ["mJ", 1e-3], ["µJ", 1e-6]].find((unit) => most >= unit[1]) ?? ["J", 1];
      column.label += `, ${column.unit}`;
    }
  }

  shown(column, row) {
    const value = column.values[row];
    if (column.kind === "text") return value;
    if (column.kind === "mhz") return value === null ? "auto" : [value].flat().join("–");
    if (value === null) return "–";
    if (column.kind === "change") return change(value);
    if (column.kind === "joules") return minus((value / column.size).toFixed(column.most >= 100 * column.size ? 1 : 2));
    if (column.kind === "seconds") return inSeconds(value);
    if (column.kind === "parts") return value.map(([name, runs]) => (runs > 1 ? `${name} ×${runs}` : name)).join(", ");
    return String(value);
  }
  raw(column, row) {
    const value = column.values[row];
    return ["text", "parts", "mhz"].includes(column.kind) ? this.shown(column, row) : String(value ?? "");
  }
  order(column, row) {
    const value = column.values[row];
    if (column.kind === "mhz") return value === null ? Infinity : [value].flat().at(-1);
    return value ?? -Infinity;
  }
  isName(column) { return column.kind === "text" || column.kind === "parts"; }

  build() {
    this.search = make("input", { type: "search" });
    this.found = make("output", {});
    const save = make("button", { type: "button" }, "Save as CSV");
    const bar = make("div", { class: "bar reader" }, make("label", {}, "Search ", this.search), save, this.found);
    this.head = make("tr");
    this.columns.forEach((column, at) => {
      const button = make("button", { type: "button" }, column.label);
      button.addEventListener("click", () => this.sort(at, this.by === at ? !this.falls : !this.isName(column)));
      this.head.append(make("th", { scope: "col", class: this.isName(column) ? "name" : "number" }, button));
    });
    this.body = make("tbody");
    this.table = make("table", { class: `stack data${this.isLong ? " long" : ""}`, "aria-rowcount": this.count + 1 }, make("thead", {}, this.head), this.body);
    this.table.style.setProperty("--cells", "3");
    this.frame = make("div", this.count > FEW ? { class: "tall", tabindex: "0", role: "region", "aria-label": `All ${this.noun}` } : {}, this.table);
    this.note = make("p", { class: "soft" });
    this.place.append(bar, this.frame, this.note);
    this.search.addEventListener("input", () => this.sift());
    save.addEventListener("click", () => this.save());
    this.frame.addEventListener("scroll", () => { if (this.isLong) this.draw(); });
    matchMedia("print").addEventListener("change", () => this.draw());
    new ResizeObserver(() => { if (this.isLong) this.draw(); }).observe(this.frame);
  }

  sort(at, falls) {
    [this.by, this.falls] = [at, falls];
    const column = this.columns[at];
    const compared = this.isName(column)
      ? (a, b) => words.compare(this.shown(column, a), this.shown(column, b))
      : (a, b) => { const [x, y] = [this.order(column, a), this.order(column, b)]; return x === y ? a - b : x - y; };
    this.all = [...Array(this.count).keys()].sort(falls ? (a, b) => compared(b, a) : compared);
    [...this.head.cells].forEach((head, place) => {
      if (place === at) head.setAttribute("aria-sort", falls ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
    this.sift();
  }

  sift() {
    const wanted = this.search.value.trim().toLowerCase();
    const named = this.columns.filter((column) => this.isName(column));
    this.rows = wanted ? this.all.filter((row) => named.some((column) => this.shown(column, row).toLowerCase().includes(wanted))) : this.all;
    this.found.textContent = wanted ? `${this.rows.length} of ${this.count} ${this.noun}` : "";
    this.frame.scrollTop = 0;
    this.draw();
  }

  folded(parts, whole, onPaper) {
    const names = parts.map(([name]) => name);
    if (names.length <= NAMED) return whole;
    const some = `${names.slice(0, NAMED).join(", ")} and ${names.length - NAMED} more`;
    if (onPaper) return some;
    return make("details", {}, make("summary", {}, some), whole);
  }

  row(place, onPaper = false) {
    const made = make("tr", { "aria-rowindex": place + 2 });
    for (const column of this.columns) {
      const text = this.shown(column, this.rows[place]);
      const cell = make("td", { class: this.isName(column) ? (column.kind === "parts" ? "name last" : "name") : "number" });
      cell.append(column.kind === "parts" && !this.isLong ? this.folded(column.values[this.rows[place]], text, onPaper) : text);
      if (this.isName(column)) cell.title = this.isLong ? text : "";
      else cell.dataset.label = column.label;
      made.append(cell);
    }
    return made;
  }

  draw() {
    const onPaper = matchMedia("print").matches;
    if (!this.isLong || onPaper) {
      const most = onPaper && this.isLong ? PRINTED : this.count;
      const shown = this.rows.slice(0, most);
      this.body.replaceChildren(...shown.map((_, place) => this.row(place, onPaper)));
      this.note.textContent = shown.length < this.rows.length ? `Printed are the first ${most} of ${this.rows.length} ${this.noun}.` : "";
      return;
    }
    this.note.textContent = "";
    if (!this.tall) {
      this.body.replaceChildren(this.row(0));
      this.tall = this.body.firstChild.offsetHeight || 32;
      this.wide = this.frame.clientWidth;
    } else if (this.wide !== this.frame.clientWidth) {
      this.tall = 0;
      return this.draw();
    }
    const first = Math.max(0, Math.floor(this.frame.scrollTop / this.tall) - 12);
    const last = Math.min(this.rows.length, first + Math.ceil(this.frame.clientHeight / this.tall) + 24);
    const gap = (rows) => { const made = make("tr", { class: "gap", "aria-hidden": "true" }); made.style.height = `${rows * this.tall}px`; return made; };
    const shown = Array.from({ length: last - first }, (_, i) => this.row(first + i));
    this.body.replaceChildren(gap(first), ...shown, gap(this.rows.length - last));
  }

  save() {
    const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    const lines = [this.columns.map((column) => column.key)];
    for (const row of this.rows) lines.push(this.columns.map((column) => this.raw(column, row)));
    const text = lines.map((line) => line.map(quoted).join(",") + "\r\n").join("");
    const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: `${this.noun}.csv` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }
}

// ---- All of it

const begin = async () => {
  const data = await unpacked();
  const timeline = byId("timeline");
  if (timeline && data.bands.length) new Timeline(timeline, data);
  for (const [name, table] of Object.entries(data.tables ?? {})) {
    const place = byId(`table-${name}`);
    if (place) new DataTable(place, table, data.texts);
  }
  const reader = byId("frontier-reader");
  if (reader) followLines(reader, data);
  const folds = document.querySelectorAll("details.fold");
  addEventListener("beforeprint", () => folds.forEach((fold) => { fold.open = true; }));
  document.documentElement.dataset.ready = "yes";
};
begin();
