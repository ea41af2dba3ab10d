// Sorts and searches tables in place, and holds a comparison to four setups. Without it every table is complete and ranked.
(() => {
  const value = (row, at, numeric) => {
    const text = (row.cells[at]?.innerText ?? "").trim();
    if (!numeric) return text.toLowerCase();
    const number = parseFloat(text.replaceAll(",", "").replace("≈", ""));
    return Number.isNaN(number) ? null : number;
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const numeric = head.dataset.kind === "n";
        const first = numeric && at > 0 ? "descending" : "ascending";
        const now = head.getAttribute("aria-sort");
        const next = now === first ? (first === "ascending" ? "descending" : "ascending") : first;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", next);
        const sign = next === "ascending" ? 1 : -1;
        const rows = [...table.tBodies[0].rows].map((row) => [value(row, at, numeric), row]);
        rows.sort(([a], [b]) => (a === null) - (b === null) || (a === b ? 0 : a > b ? sign : -sign));
        table.tBodies[0].append(...rows.map(([, row]) => row));
      });
    });
  }
  const boxes = [...document.querySelectorAll(".picks input")];
  const limit = () => {
    const full = boxes.filter((box) => box.checked).length >= 4;
    boxes.forEach((box) => { box.disabled = full && !box.checked; });
  };
  boxes.forEach((box) => box.addEventListener("change", limit));
  limit();
  const form = document.querySelector("form.search");
  const rows = [...document.querySelectorAll("table.searchable tbody tr")].map((row) => [row.innerText.toLowerCase(), row]);
  if (form && rows.length > 3) {
    form.hidden = false;
    form.addEventListener("submit", (event) => event.preventDefault());
    const input = form.querySelector("input");
    const said = form.querySelector("output");
    const search = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      let shown = 0;
      for (const [text, row] of rows) {
        row.hidden = !words.every((word) => text.includes(word));
        shown += !row.hidden;
      }
      said.textContent = words.length ? `${shown} of ${rows.length}` : "";
      history.replaceState(null, "", words.length ? `#q=${encodeURIComponent(input.value)}` : location.pathname);
    };
    input.addEventListener("input", search);
    if (location.hash.startsWith("#q=")) {
      input.value = decodeURIComponent(location.hash.slice(3));
      search();
    }
  }
})();
