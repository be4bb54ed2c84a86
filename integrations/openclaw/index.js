/** The entry that OpenClaw loads. */

import { createPlugin } from "./src/plugin.js";

export default createPlugin();
