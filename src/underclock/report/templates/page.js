// A slider over the frontier, and a table of kernels to sort, search and save. The page reads
// without any of it; what needs it is hidden until here.
"use strict";

const change = (fraction) => {
  const percent = Math.round(1e4 * fraction) / 100;
  return `${percent < 0 ? "−" : "+"}${Math.abs(percent).toFixed(2)} %`;
};

const followFrontier = (panel) => {
  const points = JSON.parse(document.getElementById("frontier-points").textContent);
  const slider = panel.querySelector("input");
  const marks = [...document.querySelectorAll("#figure-frontier svg")].map((drawing) => {
    const mark = document.createElementNS("http://www.w3.org/2000/svg", "circle");
    mark.setAttribute("r", "7");
    mark.setAttribute("class", "mark");
    drawing.append(mark);
    return { mark, line: drawing.querySelector("polyline").points };
  });
  const show = () => {
    const time = Math.min(Number(slider.value), points[points.length - 1][0]);
    const next = Math.max(1, points.findIndex((point) => point[0] >= time - 1e-12));
    const [before, after] = [points[next - 1], points[next]];
    const part = Math.min(1, Math.max(0, (time - before[0]) / (after[0] - before[0] || 1)));
    const between = (a, b) => a + part * (b - a);
    for (const { mark, line } of marks) {
      const [from, to] = [line.getItem(next - 1), line.getItem(next)];
      mark.setAttribute("cx", between(from.x, to.x));
      mark.setAttribute("cy", between(from.y, to.y));
    }
    const energy = change(between(before[1], after[1]));
    slider.setAttribute("aria-valuetext", `${change(time)} time, ${energy} energy`);
    panel.querySelector(".time").textContent = change(time);
    panel.querySelector(".energy").textContent = energy;
  };
  slider.addEventListener("input", show);
  panel.hidden = false;
  show();
};

// What a cell means: the exact number where the page shows a rounded one; nothing for a dash.
const value = (cell) => cell.dataset.value ?? cell.textContent.replace(/^–$/, "");
const numeric = (cell) => (value(cell) === "auto" ? Infinity : Number(value(cell)));

const sortable = (table) => {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const first = column === 0 ? "ascending" : "descending";
      const again = head.getAttribute("aria-sort") === first;
      const falling = again === (first === "ascending");
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const compared = (a, b) => {
        const [x, y] = [a.cells[column], b.cells[column]];
        if (column === 0) return value(x).localeCompare(value(y));
        return numeric(x) === numeric(y) ? 0 : numeric(x) - numeric(y);
      };
      const rows = [...body.rows].sort((a, b) => (falling ? compared(b, a) : compared(a, b)));
      body.append(...rows);
    });
  });
};

const searchable = (table, panel) => {
  const words = panel.querySelector("input");
  words.addEventListener("input", () => {
    const wanted = words.value.trim().toLowerCase();
    let shown = 0;
    for (const row of table.tBodies[0].rows) {
      row.hidden = !value(row.cells[0]).toLowerCase().includes(wanted);
      shown += row.hidden ? 0 : 1;
    }
    panel.querySelector("output").textContent = wanted ? `${shown} shown` : "";
  });
};

const asCsv = (table) => {
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const shown = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  const lines = [[...table.tHead.rows[0].cells].map((cell) => cell.dataset.csv)];
  for (const row of shown) lines.push([...row.cells].map(value));
  return lines.map((line) => line.map(quoted).join(",") + "\r\n").join("");
};

const savable = (table, panel) => {
  panel.querySelector("button").addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([asCsv(table)], { type: "text/csv" }));
    link.download = "kernels.csv";
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  });
};

const reader = document.getElementById("frontier-reader");
if (reader) followFrontier(reader);
const kernels = document.getElementById("kernels");
if (kernels) {
  const panel = document.getElementById("kernels-panel");
  sortable(kernels);
  searchable(kernels, panel);
  savable(kernels, panel);
  panel.hidden = false;
}
