// Tables that sort and filter, and interactive views: all of it is an addition to a whole page.
(() => {
  "use strict";
  const make = (tag, text, attributes = {}) => {
    const one = document.createElement(tag);
    one.textContent = text;
    for (const [name, value] of Object.entries(attributes)) one.setAttribute(name, value);
    return one;
  };

  const compare = (rows, column, order) => {
    const texts = rows.map((row) => row.cells[column].textContent.trim());
    const numbers = texts.map((text) => parseFloat(text.replace(/,|range /g, "")));
    const numeric = texts.every((text, at) => text === "" || text === "-" || !isNaN(numbers[at]));
    const rank = (at) => {
      if (order) return order.indexOf(texts[at]);
      return numeric ? (isNaN(numbers[at]) ? Infinity : numbers[at]) : texts[at];
    };
    const keys = new Map(rows.map((row, at) => [row, rank(at)]));
    return (a, b) => {
      const [x, y] = [keys.get(a), keys.get(b)];
      if (typeof x === "string") return x.localeCompare(y, "en", { numeric: true });
      return x === y ? 0 : x - y;
    };
  };

  for (const table of document.querySelectorAll("table.data")) {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    if (rows.length < 3) continue;
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, column) => {
      const button = make("button", head.textContent, { type: "button" });
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const down = head.getAttribute("aria-sort") === "ascending";
        heads.forEach((one) => one.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const order = head.dataset.order && head.dataset.order.split("|");
        const sorted = [...rows].sort(compare(rows, column, order));
        body.append(...(down ? sorted.reverse() : sorted));
      });
    });
    if (rows.length < 9) continue;
    const tools = make("div", "", { class: "tools" });
    const label = make("label", "Filter ");
    const input = make("input", "", { type: "search" });
    const count = make("span", `${rows.length} rows`, { role: "status", class: "soft" });
    input.addEventListener("input", () => {
      const words = input.value.toLowerCase().split(/\s+/);
      let shown = 0;
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
        shown += row.hidden ? 0 : 1;
      }
      count.textContent = shown < rows.length ? `${shown} of ${rows.length} rows` : `${shown} rows`;
    });
    label.append(input);
    tools.append(label, count);
    table.closest(".wide").before(tools);
  }

  const load = (name) => new Promise((done, failed) => {
    const script = make("script", "", { src: `assets/${name}` });
    script.addEventListener("load", done);
    script.addEventListener("error", () => failed(new Error("assets/ is not beside this page")));
    document.head.append(script);
  });
  let loading = null;
  const library = () => {
    const names = document.body.dataset.scripts.split(" ");
    loading = loading || names.reduce((before, name) => before.then(() => load(name)), Promise.resolve());
    return loading;
  };

  const look = () => {
    const colour = (name) => getComputedStyle(document.body).getPropertyValue(name).trim();
    const [ink, soft, line] = ["--ink", "--soft", "--line"].map(colour);
    const colours = document.body.dataset.colours.split(" ");
    return {
      background: null,
      lineBreak: "\n",
      font: "system-ui, sans-serif",
      view: { stroke: line },
      axis: { labelColor: ink, titleColor: ink, gridColor: line, domainColor: soft, tickColor: soft,
        labelLimit: 220, titleFontWeight: "normal" },
      axisQuantitative: { tickCount: 5 },
      legend: { labelColor: ink, titleColor: ink, titleFontWeight: "normal", labelLimit: 240 },
      header: { labelColor: ink, labelFontWeight: "bold", labelLimit: 300 },
      range: { category: colours },
      mark: { color: colours[0] },
      rule: { color: ink },
    };
  };

  const fitted = (spec, width) => {  // as many panels a line as there is room for
    const labels = 170;
    if (!spec.facet) return { ...spec, width: Math.max(200, Math.min(640, width - labels - 130)) };
    const columns = Math.max(1, Math.min(spec.columns, Math.floor((width - labels) / 250)));
    const panel = Math.min(640, Math.floor((width - labels - 120) / columns) - 30);
    return { ...spec, columns, spec: { ...spec.spec, width: Math.max(150, panel) } };
  };

  const csv = (figure) => {  // with the columns that are the same in every row
    const lines = (name) =>  // a cell in quotes may have several
      figure.querySelector(name)?.textContent.match(/(?:"[^"]*"|[^"\n])+/g);
    const [rows, same] = [lines("pre.csv"), lines("pre.same")];
    const whole = (row, at) => same ? `${row},${same[at ? 1 : 0]}` : row;
    return rows.map(whole).join("\n") + "\n";
  };

  const draw = async (figure, place) => {
    const spec = JSON.parse(figure.dataset.view);
    spec.data.values = csv(figure);
    spec.description = figure.querySelector("img").alt;
    await window.vegaEmbed(place, fitted(spec, place.clientWidth), {
      mode: "vega-lite",
      renderer: "svg",
      actions: { export: true, source: false, compiled: false, editor: false },
      config: look(),
      tooltip: { theme: matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" },
    });
  };

  for (const figure of document.querySelectorAll("figure")) {
    const tools = make("div", "", { class: "tools" });
    const image = figure.querySelector("img");
    if (figure.dataset.view) {
      const place = make("div", "", { class: "view" });
      const button = make("button", "Interactive view", { type: "button" });
      const said = make("span", "", { role: "status", class: "soft" });
      const show = (on) => {
        place.hidden = !on;
        image.hidden = on;
        button.setAttribute("aria-pressed", on);
      };
      show(false);
      image.after(place);
      button.addEventListener("click", async () => {
        const on = place.hidden;
        show(on);
        said.textContent = "";
        if (!on || place.childElementCount) return;
        try {
          await library();
          await draw(figure, place);
          const pick = figure.dataset.view.includes('"legend"') ? "; click the legend to pick one" : "";
          said.textContent = `Point at a mark for its values${pick}.`;
        } catch (error) {
          show(false);
          said.textContent = `No interactive view: ${error.message}.`;
          loading = null;
        }
      });
      tools.append(button, said);
    }
    const save = make("button", "Save CSV", { type: "button" });
    save.addEventListener("click", () => {
      const blob = new Blob([csv(figure)], { type: "text/csv" });
      const link = make("a", "", { href: URL.createObjectURL(blob), download: `${figure.id}.csv` });
      link.click();
      URL.revokeObjectURL(link.href);
    });
    tools.append(save);
    image.before(tools);
  }

  window.addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll(".provenance")) one.open = true;
  });
  const reveal = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.closest("details")) {
      target.closest("details").open = true;
      target.scrollIntoView();
    }
  };
  window.addEventListener("hashchange", reveal);
  reveal();
})();
