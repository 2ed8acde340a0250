// What only our brokers tell, and the pages that explain it.
import { page as partitions } from "./pages/inside_partitions.js";
import { page as partition } from "./pages/inside_partition.js";
import { page as waiting } from "./pages/inside_waiting.js";
import { page as requests } from "./pages/inside_requests.js";
import { page as controller } from "./pages/inside_controller.js";
import { page as transactions } from "./pages/inside_transactions.js";
import { page as znodes } from "./pages/inside_znodes.js";
import { page as pipelines } from "./pages/pipelines.js";
import { page as docs, start } from "./pages/docs.js";

export const INSIDE_PAGES = [pipelines, partitions, partition, waiting, requests, controller, transactions, znodes, start, docs];
