// Fills the page of two runs from its JSON. After plots.js.
unpacked("data").then((text) => {
  const { runs, charts } = JSON.parse(text);
  byId("runs").replaceChildren(...runs.map(([run, name, colour, steps]) => {
    const letter = make("span", "", run);
    letter.style.color = `var(--${colour})`;
    return make("h1", "", letter, ` ${name}`, make("span", "label", ` ${steps} steps`));
  }));
  drawCharts("charts", charts);
  if (!charts.length) byId("charts").replaceWith(make("p", "", "The runs have no curve in common."));
  shown();
}).catch(broken);
