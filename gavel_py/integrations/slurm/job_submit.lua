-- job_submit.lua: written by `gavel slurm install`, gavel-py.
-- Jobs of the managed partitions that ask for GPUs start on hold; only administrators, such as the driver, can release them.
-- If the driver has given no sign of life for a while, jobs pass as if there were no plugin.
-- For each job the plugin records its submit time, which a requeue overwrites, and whether it must be on one node, which a start
-- overwrites; it also marks holds by users. The driver's account may have no right to record anything in Slurm itself.

local PARTITIONS = "@PARTITION@"
local IS_DEFAULT = @IS_DEFAULT@
local ADMINISTRATORS = { @ADMINISTRATORS@ }
local HOLD = "gavel%-hold"
-- The driver keeps a job on hold whose comment has the time at which it was last alive; 0 seconds: always hold jobs.
local BEACON = "@BEACON@"
local DEAD_SECONDS = @DEAD_SECONDS@

local REJECT_ODD = @REJECT_ODD@
local REJECT_UNPLANNED = @REJECT_UNPLANNED@
local UNAVAILABLE = 2014 -- "Requested node configuration is not available"
local DENIED = slurm.ESLURM_ACCESS_DENIED or 2002 -- "Access/permission denied"
local BAD_PARTITION = 2000 -- "Invalid partition name specified"

local REQUESTS = { "tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket", "gres" }
local ON_ONE_NODE = { "tres_per_node", "tres_per_task", "tres_per_socket", "gres" }

local MANAGED = {}
for name in string.gmatch(PARTITIONS, "[^,]+") do
   MANAGED[name] = true
end

-- The partitions of a job, several separated by commas; jobs that name none go to the default.
local function named(partitions)
   if partitions == nil or partitions == "" then
      return IS_DEFAULT and PARTITIONS or ""
   end
   return partitions
end

-- Returns whether all partitions of a job are managed, and whether any is.
local function is_managed(partitions)
   local all, any = true, false
   for name in string.gmatch(named(partitions), "[^,]+") do
      all = all and MANAGED[name] == true
      any = any or MANAGED[name] == true
   end
   return all and any, any
end

local function wants_gpus(job)
   for _, field in ipairs(REQUESTS) do
      local text = job[field]
      if type(text) == "string" and string.find(text, "gpu", 1, true) then
         return true
      end
   end
   return false
end

-- The place of a job for its annotation; empty for jobs that ask for certain nodes, which are not managed.
local function place_of(job)
   if job.req_nodes ~= nil and job.req_nodes ~= "" then
      return ""
   end
   local by_node = string.find(job.tres_per_node or job.gres or "", "gpu", 1, true) ~= nil
   local least = job.min_nodes
   if job.max_nodes == 1 or (by_node and (least == nil or least == slurm.NO_VAL or least <= 1)) then
      return ";place=node"
   end
   return ";place=any"
end

local function is_administrator(uid)
   return ADMINISTRATORS[uid] == true
end

-- Returns whether two lists of partitions have one in common.
local function overlap(first, second)
   for name in string.gmatch(first, "[^,]+") do
      if string.find("," .. second .. ",", "," .. name .. ",", 1, true) ~= nil then
         return true
      end
   end
   return false
end

-- The sign of life of the driver of any of these partitions: its comment and its account; nil if the driver is dead.
local function sign_of_life(partitions)
   if slurm.jobs ~= nil then
      for _, each in pairs(slurm.jobs) do
         local managed = string.match(each.comment or "", " of=(%S+)") or each.partition or ""
         if each.name == BEACON and overlap(managed, named(partitions)) and is_administrator(each.user_id) then
            local seconds = tonumber(string.match(each.comment or "", "alive=(%d+)"))
            if seconds ~= nil and (DEAD_SECONDS == 0 or math.abs(os.time() - seconds) < DEAD_SECONDS) then
               return each.comment, each.user_id
            end
         end
      end
   end
   if DEAD_SECONDS == 0 or slurm.jobs == nil then
      return ""
   end
   return nil
end

-- A 16-bit or 32-bit number of a job, or nil if it has none.
local function number_of(value, none)
   if value == nil or value >= none then
      return nil
   end
   return value
end

-- CPUs that a job needs on one of its nodes, whatever options request them; by_node: its GPUs per node, if requested.
local function cpus_on_node(job, by_node)
   local by_task = number_of(job.cpus_per_task, 65534) or 1
   local most = math.max(number_of(job.pn_min_cpus, 65534) or 0, by_task * (number_of(job.ntasks_per_node, 65534) or 1))
   local by_gpu = tonumber(string.match(job.cpus_per_tres or "", "gpu:(%d+)")) or 0
   local gpus = by_node or 1
   if job.max_nodes == 1 then
      most = math.max(most, number_of(job.min_cpus, slurm.NO_VAL) or 0)
      gpus = by_node or tonumber(string.match(job.tres_per_job or "", "gpu:?[^,]-:?(%d+)$")) or 1
   end
   return math.max(most, by_gpu * gpus)
end

-- The resources of one partition in the driver's comment; those of all its partitions if it has only one.
local function offer_of(sign, partition)
   return string.match(sign, "%[" .. string.gsub(partition, "%W", "%%%0") .. " ([^%]]*)%]") or sign
end

-- The GPUs in a request such as gres:gpu:v100:2,gres:gpu:4 as {type: number}; the type is "" if none is named.
local function gpus_in(text)
   local found = {}
   for item in string.gmatch(text or "", "[^,]+") do
      local rest = string.match(item, "^%s*gres[:/]gpu(.*)$") or string.match(item, "^%s*gpu(.*)$")
      if rest == "" or (rest ~= nil and string.find(rest, "^[:=]")) then
         local kind = string.match(rest, "^[:=]([%a_][%w_.-]*)") or ""
         found[kind] = (found[kind] or 0) + (tonumber(string.match(rest, "[:=](%d+)$")) or 1)
      end
   end
   return found
end

local function gpus_text(number, kind)
   local noun = number == 1 and " GPU" or " GPUs"
   return string.format("%d", number) .. noun .. (kind == "" and "" or " of type " .. kind)
end

-- The most GPUs of a type on a node of the offer, and on all of them; nil for what the offer of an earlier version lacks.
local function gpus_offered(offer, kind)
   if kind == "" then
      return tonumber(string.match(offer, "gpus=(%d+)")), tonumber(string.match(offer, "all=(%d+)"))
   end
   local list = "," .. (string.match(offer, "has=(%S*)") or "")
   local most, all = string.match(list, "," .. string.gsub(kind, "%W", "%%%0") .. ":(%d+)/(%d+)")
   return tonumber(most), tonumber(all)
end

-- Why a partition can never give a job its GPUs.
local function impossible_gpus(partition, job, offer)
   local types = string.match(offer, "types=(%S*)")
   for _, field in ipairs(REQUESTS) do
      for kind in pairs(gpus_in(job[field])) do
         if kind ~= "" and string.find("," .. types .. ",", "," .. kind .. ",", 1, true) == nil then
            return "no node of partition " .. partition .. " has GPUs of type " .. kind .. "; there are " .. types
         end
      end
   end
   for _, field in ipairs(ON_ONE_NODE) do
      for kind, number in pairs(gpus_in(job[field])) do
         local most = gpus_offered(offer, kind)
         if most ~= nil and number > most then
            return string.format("no node of partition %s has %s; the largest have %d", partition, gpus_text(number, kind), most)
         end
      end
   end
   local tasks = number_of(job.num_tasks, slurm.NO_VAL) or 1
   for field, times in pairs({ tres_per_job = 1, tres_per_task = tasks }) do
      for kind, number in pairs(gpus_in(job[field])) do
         local _, all = gpus_offered(offer, kind)
         if all ~= nil and number * times > all then
            return string.format("%s are more than partition %s has (%d)", gpus_text(number * times, kind), partition, all)
         end
      end
   end
   return nil
end

-- Why no node of a partition can ever meet the request of a job; Slurm itself does not check jobs on hold.
local function impossible_in(partition, job, offer)
   local memory = tonumber(string.match(offer, "mem=(%d+)"))
   if string.match(offer, "types=(%S*)") == nil or memory == nil then
      return nil
   end
   local why = impossible_gpus(partition, job, offer)
   if why ~= nil then
      return why
   end
   for unit, asked in pairs({ [""] = job.min_mem_per_node or 0, [" for a CPU"] = job.min_mem_per_cpu or 0 }) do
      if asked ~= slurm.NO_VAL64 and asked > memory and asked < 1e15 then
         return string.format("no node of partition %s has %d MB%s; the largest have %d", partition, asked, unit, memory)
      end
   end
   local by_node = tonumber(string.match(job.tres_per_node or job.gres or "", "gpu:?[^,]-:?(%d+)$"))
   local cpus, needed = tonumber(string.match(offer, "cpus=(%d+)")), cpus_on_node(job, by_node)
   if cpus ~= nil and needed > cpus then
      return string.format("no node of partition %s has %d CPUs; the largest have %d", partition, needed, cpus)
   end
   return nil
end

-- Why none of its partitions can ever run a job; nil if one can.
local function impossible(job, sign)
   local first = nil
   for name in string.gmatch(named(job.partition), "[^,]+") do
      local why = impossible_in(name, job, offer_of(sign, name))
      if why == nil then
         return nil
      end
      first = first or why
   end
   return first
end

-- A note on a gang that needs more nodes than its GPUs fill, so that each node has the same number of them; nil if it does not.
local function odd_split(job, sign)
   local gpus = nil
   for name in string.gmatch(named(job.partition), "[^,]+") do
      local most = tonumber(string.match(offer_of(sign, name), "gpus=(%d+)"))
      gpus = most and math.max(most, gpus or 0) or gpus
   end
   local asked = tonumber(string.match(job.tres_per_job or "", "gpu:?[^,]-:?(%d+)$"))
   if gpus == nil or asked == nil or asked <= gpus then
      return nil
   end
   local fewest = math.ceil(asked / gpus)
   local nodes = fewest
   while asked % nodes ~= 0 do
      nodes = nodes + 1
   end
   if nodes == fewest then
      return nil
   end
   local better = math.floor(fewest * gpus)
   return string.format("%d GPUs run on %d nodes with %d each, since each node must have the same number; %d would fit on %d nodes",
      asked, nodes, math.floor(asked / nodes), better, fewest)
end

-- Why the driver could not plan a job that requests this, so that it would keep its GPUs until it ends, ahead of others; nil if it
-- could. Nodes of reservations are not planned.
local function unplanned(job)
   local function has(field)
      return job[field] ~= nil and job[field] ~= ""
   end
   if has("reservation") then
      return nil
   elseif has("req_nodes") then
      return "--nodelist"
   elseif has("exc_nodes") then
      return "--exclude"
   elseif job.shared ~= nil and job.shared ~= 1 and job.shared < 65534 then
      return "--exclusive"
   elseif next(gpus_in(job.tres_per_socket)) ~= nil then
      return "--gpus-per-socket"
   elseif has("features") and string.find(job.features, "[^%w_.:=&|-]") ~= nil then
      return "--constraint other than names joined by & or |"
   end
   for _, field in ipairs(REQUESTS) do
      local found = gpus_in(job[field])
      local first = next(found)
      if first ~= nil and next(found, first) ~= nil then
         return "GPUs of several types"
      end
   end
   return nil
end

local function turns_text(partitions, why)
   return "jobs of partition " .. partitions .. " take turns on its nodes, which is not possible with " .. why
end

local function mixed_text(partitions)
   return "not all of partitions " .. partitions .. " are managed by gavel (" .. PARTITIONS .. "), where jobs wait for their turn;"
      .. " name only managed ones, or none of them"
end

function slurm_job_submit(job, partitions, uid)
   local all, any = is_managed(job.partition)
   if not any or not wants_gpus(job) then
      return slurm.SUCCESS
   end
   local sign = sign_of_life(job.partition)
   if sign == nil then
      return slurm.SUCCESS
   end
   local partitions = named(job.partition)
   if not all then
      slurm.log_user(mixed_text(partitions))
      return slurm.ERROR
   end
   -- Slurm schedules heterogeneous jobs by itself; only their first part has a script.
   local part = job.het_job_offset
   local is_heterogeneous = part ~= nil and part ~= slurm.NO_VAL
   if is_heterogeneous and part > 0 then
      return slurm.SUCCESS
   end
   if job.script == nil or job.script == "" then
      slurm.log_user("partition " .. partitions .. " accepts only batch jobs (sbatch), since jobs are stopped and restarted")
      return slurm.ERROR
   end
   local turns = REJECT_UNPLANNED and (is_heterogeneous and "heterogeneous jobs" or unplanned(job))
   if turns then
      slurm.log_user(turns_text(partitions, turns))
      return slurm.ERROR
   end
   if is_heterogeneous then
      return slurm.SUCCESS
   end
   if job.requeue == 0 then
      slurm.log_user("partition " .. partitions .. " accepts only jobs that may be requeued; omit --no-requeue")
      return slurm.ERROR
   end
   local why = impossible(job, sign)
   if why ~= nil then
      slurm.log_user(why)
      return UNAVAILABLE
   end
   local odd = odd_split(job, sign)
   if odd ~= nil then
      slurm.log_user(odd)
      if REJECT_ODD then
         return slurm.ERROR
      end
   end
   if job.priority == 0 then
      job.comment = (job.comment or "") .. " gavel-hold"
   end
   job.priority = 0
   job.requeue = 1
   job.admin_comment = "gavel:submit=" .. os.time() .. ";plugin;of=" .. PARTITIONS .. place_of(job)
   return slurm.SUCCESS
end

-- The error code for a change of a job that was refused at its submission; nil if the change is possible. Administrators may put
-- single jobs on certain nodes.
local function refused_change(job, record, uid)
   local moved = job.partition ~= nil and job.partition ~= ""
   local partitions = moved and job.partition or record.partition
   local all, any = is_managed(partitions)
   local has_gpus = wants_gpus(job) or wants_gpus(record) or string.find(record.admin_comment or "", "gavel:", 1, true) ~= nil
   if not any or not has_gpus or sign_of_life(partitions) == nil then
      return nil
   end
   if moved and not all then
      slurm.log_user(mixed_text(partitions))
      return BAD_PARTITION
   end
   local why = REJECT_UNPLANNED and not is_administrator(uid) and unplanned(job)
   if why then
      slurm.log_user(turns_text(partitions, why))
      return UNAVAILABLE
   end
   return nil
end

-- If a job is already held, a hold by anyone but the driver changes nothing in Slurm, so it is marked in the comment. A release
-- removes the mark and keeps the driver's hold. Administrators may also release jobs without a mark.
function slurm_job_modify(job, record, partitions, uid)
   local refused = refused_change(job, record, uid)
   if refused ~= nil then
      return refused
   end
   if not is_managed(record.partition) or job.priority == slurm.NO_VAL then
      return slurm.SUCCESS
   end
   local sign, driver = sign_of_life(record.partition)
   if driver == uid or (driver == nil and is_administrator(uid)) then
      return slurm.SUCCESS
   end
   local comment = string.gsub(record.comment or "", "%s*" .. HOLD, "")
   if job.priority == 0 then
      job.comment = comment .. " gavel-hold"
      return slurm.SUCCESS
   end
   if string.find(record.admin_comment or "", "gavel:", 1, true) == nil or sign == nil then
      return slurm.SUCCESS
   end
   if comment == (record.comment or "") then
      if is_administrator(uid) then
         return slurm.SUCCESS
      end
      slurm.log_user("gavel starts the jobs of partition " .. record.partition .. " when it is their turn")
      return DENIED
   end
   -- An empty comment would not replace the old one.
   job.comment = comment == "" and "gavel:" or comment
   job.priority = slurm.NO_VAL
   return slurm.SUCCESS
end

return slurm.SUCCESS
