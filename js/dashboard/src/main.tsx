/** The page's start. */
import { render } from "preact";
import { App } from "./app.js";
import { restore } from "./session.js";
import "uplot/dist/uPlot.min.css";
import "./styles.css";

restore();
render(<App />, document.body);
