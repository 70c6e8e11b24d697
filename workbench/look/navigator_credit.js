// The credit editor of the navigator: counterfactual advantages of the step, with other rewards, trajectories, masks or estimators.
// Every number comes from the kernel, which calls what training calls; a saved page has the estimators side by side, unedited.

class CreditPanel {
  constructor(navigator) {
    Object.assign(this, { navigator, step: navigator.facts.step, run: navigator.run, asked: 0, reply: null });
    this.forget();
    this.body = make("div", {});
    this.box = make("details", { class: "wb-editor", ontoggle: () => this.box.open && !this.reply && this.recompute() },
      make("summary", { text: "counterfactual advantages: other rewards, masks or estimators" }), this.body);
  }

  forget() { this.edit = { columns: [], settings: {}, rewards: [], dropped: [] }; }

  get edited() { return Object.keys(this.edit.settings).length || this.edit.rewards.length || this.edit.dropped.length; }

  async recompute() {
    const { task, attempt } = this.navigator.place;
    const turn = ++this.asked;
    const said = Object.fromEntries(Object.entries(this.edit).filter(([, value]) => (Array.isArray(value) ? value.length : Object.keys(value).length)));
    const question = { ask: "credit", run: this.run, step: this.step, edit: JSON.stringify(said) };
    if (known(attempt) && !this.navigator.saved) Object.assign(question, { task, attempt });
    const reply = await this.navigator.ask(question);
    if (turn !== this.asked) return; // an edit has been made since
    if (reply.error) {
      this.navigator.say(reply.error);
      if (!this.reply) fill(this.body, make("p", { text: reply.error }));
      return;
    }
    this.reply = reply;
    this.draw();
    if (known(reply.number)) this.navigator.addLanes(this.lanes());
  }

  moved() { if (this.box.open && this.reply) this.recompute(); }

  lanes() {
    const { arrays, columns } = this.reply;
    const found = { "credit as trained": arrays.before };
    columns.forEach((column, index) => { if (arrays[`after ${index}`]) found[`credit: ${column.name}${index || !this.edited ? "" : ", edited"}`] = arrays[`after ${index}`]; });
    return found;
  }

  change(values) {
    if (!this.edit.columns.length) this.edit.columns = this.reply.columns.map((column) => column.name);
    Object.assign(this.edit, values);
    this.recompute();
  }

  set(knob, value) {
    const settings = { ...this.edit.settings, [knob.name]: value };
    if (value === knob.default) delete settings[knob.name];
    this.change({ settings });
  }

  draw() {
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    const { algorithms, columns, knobs, code } = this.reply;
    const names = columns.map((column) => column.name);
    const estimator = make("select", { "aria-label": "estimator", "data-key": "estimator",
      onchange: (event) => this.change({ columns: [event.target.value, ...names.slice(1).filter((name) => name !== event.target.value)], settings: {} }) },
      ...algorithms.map((name) => make("option", { text: name === this.reply.own ? `${name} (this run's)` : name, value: name, selected: name === names[0] })));
    const beside = make("details", {}, make("summary", { text: `compare with: ${names.slice(1).join(", ") || "nothing"}` }),
      make("div", { class: "wb-bar" }, ...algorithms.filter((name) => name !== names[0]).map((name) => make("label", {},
        make("input", { type: "checkbox", checked: names.includes(name), "data-key": `beside ${name}`,
          onchange: (event) => this.change({ columns: event.target.checked ? [...names, name] : names.filter((each) => each !== name) }) }), name))));
    beside.open = Boolean(this.besideOpen);
    beside.addEventListener("toggle", () => { this.besideOpen = beside.open; });
    const live = knobs.filter((knob) => !knob.inert), inert = knobs.filter((knob) => knob.inert);
    fill(this.body,
      make("div", { class: "wb-bar" }, make("label", {}, "estimator ", estimator),
        make("button", { text: "undo all edits", disabled: !this.edited, "data-key": "undo", onclick: () => { this.forget(); this.recompute(); } })),
      beside,
      make("div", { class: "wb-bar" }, ...live.map((knob) => this.knob(knob))),
      inert.length ? make("details", {}, make("summary", { text: `${inert.length} settings without effect here` }),
        make("div", {}, ...inert.map((knob) => make("div", {}, this.knob(knob), make("span", { class: "wb-quiet", text: ` ${knob.inert}` }))))) : null,
      this.paid(), this.rows(),
      make("div", { class: "wb-bar" }, make("span", { class: "wb-quiet", text: "the same in one line:" }), make("code", { class: "wb-code", text: code })));
    if (focused) this.body.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
    this.navigator.say(columns.map((column) => `${column.name}: ${this.words(column)}`).join(" · "));
  }

  words(column) {
    if (column.error) return column.error;
    if (!column.changed) return "as trained";
    return `${column.changed} tokens differ${known(column.by) ? ` by up to ${said(column.by)}` : ""}${column.trained !== this.reply.trained ? `; ${column.trained} trained, ${this.reply.trained} before` : ""}`;
  }

  knob(knob) {
    const key = `knob ${knob.name}`, label = knob.name, changed = knob.value !== knob.default;
    let input;
    if (knob.choices.length) {
      input = make("select", { "data-key": key, "aria-label": label, onchange: (event) => this.set(knob, knob.choices[event.target.selectedIndex]) },
        ...knob.choices.map((choice) => make("option", { text: { true: "on", false: "off", null: "as group" }[String(choice)] ?? String(choice), selected: choice === knob.value })));
    } else {
      input = make("input", { type: "number", "data-key": key, "aria-label": label, value: knob.value, step: knob.whole ? 1 : "any", min: knob.low, max: knob.high,
        onchange: (event) => event.target.value !== "" && this.set(knob, Number(event.target.value)) });
    }
    return make("label", { class: changed ? "wb-changed" : null }, `${label}${changed ? " (changed)" : ""} `, input);
  }

  // What the chosen trajectory earned, to be changed.
  paid() {
    const { number, paid, dropped } = this.reply;
    if (!known(number)) return make("p", { class: "wb-quiet", text: this.navigator.saved ? "this page has no kernel: open the run in JupyterLab to edit" : "click a trajectory below to change its rewards, or to exclude it" });
    const inputs = paid.map(([name, reward, was], turn) => (known(was) ? make("label", { class: reward !== was ? "wb-changed" : null }, `${name} `,
      make("input", { type: "number", step: "any", value: reward, "data-key": `paid ${turn}`, "aria-label": `reward of ${name}`, onchange: (event) => {
        const rest = this.edit.rewards.filter(([attempt, at]) => attempt !== number || at !== turn);
        if (event.target.value === "") return;
        const value = Number(event.target.value);
        this.change({ rewards: value === was ? rest : [...rest, [number, turn, value]] });
      } })) : make("span", { text: `${name} not scored` })));
    return make("div", { class: "wb-bar" }, make("b", { text: `rewards of attempt ${this.navigator.place.attempt} (task ${this.navigator.place.task})` }), ...inputs,
      make("label", {}, make("input", { type: "checkbox", checked: dropped.includes(number), "data-key": "drop", "aria-label": "exclude this trajectory", onchange: (event) =>
        this.change({ dropped: event.target.checked ? [...this.edit.dropped, number] : this.edit.dropped.filter((each) => each !== number) }) }), "exclude this trajectory"));
  }

  rows() {
    const { rows, columns } = this.reply;
    const { task, attempt } = this.navigator.place;
    const heads = ["task", "attempt", "reward", "group mean", "group std", "as trained", ...columns.map((column) => (column.error ? `${column.name}: —` : column.name))];
    const shown = rows.filter((each) => !known(task) || each.task === task);
    const column = (of, sign = true) => inColumn(rows.map(of), { sign });
    const reward = inColumn(rows.flatMap((each) => [each.reward, each.was]), { sign: true });
    const mean = column((each) => each.mean), std = column((each) => each.std, false);
    const credit = inColumn(rows.flatMap((each) => [each.before, ...each.after]), { sign: true }); // to be compared: all alike
    const made = shown.map((each) => {
      const earned = each.reward === each.was ? reward(each.reward) : `${reward(each.was)} → ${each.dropped ? "excluded" : reward(each.reward)}`;
      const node = row([[each.task, true], [each.attempt, true], [earned, true], [mean(each.mean), true], [std(each.std), true], [credit(each.before), true],
        ...each.after.map((value) => [credit(value), true])], `task ${each.task}, attempt ${each.attempt}: credit`,
        () => this.navigator.go({ step: this.step, task: each.task, attempt: each.attempt }));
      each.after.forEach((value, index) => { if (value !== each.before) node.children[6 + index].classList.add("wb-changed"); });
      node.setAttribute("aria-selected", String(each.task === task && each.attempt === attempt));
      return node;
    });
    return make("div", { class: "wb-scroll" }, make("p", { class: "wb-quiet", text: "mean advantage of a trajectory's trained tokens; bold: differs from training" }), table(heads, made));
  }
}
