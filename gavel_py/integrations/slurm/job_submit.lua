-- job_submit.lua: written by `gavel slurm install`, gavel-py.
-- Jobs of the managed partitions that ask for GPUs depend on the driver's lease: a job of the driver in Slurm, which begins, and at
-- once ends, unless the driver is alive to postpone it. Without a lease, jobs pass as if there were no plugin.
-- For each job the plugin notes its submit time, which a requeue overwrites, and whether it must be on one node, which a start
-- overwrites. The driver's account may have no right to note anything in Slurm itself.

local PARTITIONS = "@PARTITION@"
local IS_DEFAULT = @IS_DEFAULT@
local ADMINISTRATORS = { @ADMINISTRATORS@ }
local LEASE = "@LEASE@"

local REJECT_ODD = @REJECT_ODD@
local REJECT_UNPLANNED = @REJECT_UNPLANNED@
local GRACE_SECONDS = 30 -- more than the time between two readings of the driver
local LOADED, BLIND_SECONDS = os.time(), 90 -- more than the time until the driver notices that slurmctld is back
local DENIED = slurm.ESLURM_ACCESS_DENIED or 2002 -- "Access/permission denied"
local UNAVAILABLE = 2014 -- "Requested node configuration is not available"
local BAD_PARTITION = 2000 -- "Invalid partition name specified"

local REQUESTS = { "tres_per_job", "tres_per_node", "tres_per_task", "tres_per_socket", "gres" }

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

-- The driver's lease on any of these partitions: the id of its job, and its comment; nil if no driver has one.
local function lease_of(partitions)
   for _, each in pairs(slurm.jobs or {}) do
      if each.name == LEASE and each.job_state % 256 == 0 and is_administrator(each.user_id) then
         local comment = each.comment or ""
         if overlap(string.match(comment, " of=(%S+)") or each.partition or "", named(partitions)) then
            return each.job_id, comment
         end
      end
   end
   return nil
end

-- The seconds for which jobs wait for a driver that is dead.
local function seconds_of(comment)
   return tonumber(string.match(comment, "lease=(%d+)")) or 600
end

-- Whether Slurm may have a lease that it does not show yet: with slurmdbd, it lists its jobs before it has read them from its state,
-- and lists them again only once a job changes in a later second.
local function is_blind()
   return next(slurm.jobs or {}) == nil and os.time() < LOADED + BLIND_SECONDS
end

-- Lets a job begin later, by when the driver has made it wait for the lease. Returns what to note, so that the driver restores its
-- begin.
local function postpone(job, seconds)
   local begin, from = job.begin_time or 0, os.time() + seconds
   if begin >= from then
      return ""
   end
   job.begin_time = from
   return ";begin=" .. string.format("%d", begin)
end

-- Makes a job wait for the lease, besides what its user wants it to wait for. Slurm does not combine dependencies joined by ? with
-- others: such a job begins later, and the driver postpones it until one of its dependencies is fulfilled. Returns what to note.
local function bind(job, lease, comment)
   local own = job.dependency or ""
   if string.find(own, "?", 1, true) ~= nil then
      return postpone(job, seconds_of(comment))
   end
   job.dependency = (own == "" and "" or own .. ",") .. "afterany:" .. lease
   return ""
end

-- The resources of one partition in the driver's comment; those of all its partitions if it has only one.
local function offer_of(comment, partition)
   return string.match(comment, "%[" .. string.gsub(partition, "%W", "%%%0") .. " ([^%]]*)%]") or comment
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

-- From 24.11 on, Slurm puts a job on one node if it does not say on how many. Returns why that is not possible.
local function too_large(job, comment)
   local asked = tonumber(string.match(job.tres_per_job or "", "gpu:?[^,]-:?(%d+)$"))
   local most = tonumber(string.match(offer_of(comment, named(job.partition)), "gpus=(%d+)"))
   if asked == nil or most == nil or most == 0 or asked <= most or job.max_nodes ~= 1 then
      return nil
   end
   return string.format("no node of partition %s has %d GPUs; for several nodes, add --nodes=%d",
      named(job.partition), asked, math.ceil(asked / most))
end

-- A note on a gang that needs more nodes than its GPUs fill, so that each node has the same number of them; nil if it does not.
local function odd_split(job, comment)
   local gpus = nil
   for name in string.gmatch(named(job.partition), "[^,]+") do
      local most = tonumber(string.match(offer_of(comment, name), "gpus=(%d+)"))
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

-- Whether a job shares its nodes with no others, or only with certain ones; from 26.05 on, only the plugin sees it.
local function is_alone(job)
   return job.shared ~= nil and job.shared ~= 1 and job.shared < 65534
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
   elseif is_alone(job) then
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
   if any and job.name == LEASE and not is_administrator(uid) then
      slurm.log_user("this account is not one of those that the plugin of gavel-py lists (--user)")
      return DENIED
   end
   if not any or not wants_gpus(job) then
      return slurm.SUCCESS
   end
   local note = "gavel:submit=" .. os.time() .. (is_alone(job) and ";alone" or ";shared")
   local lease, comment = lease_of(job.partition)
   if lease == nil then
      if all then
         job.admin_comment = note .. (is_blind() and postpone(job, BLIND_SECONDS) or "") .. place_of(job)
      end
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
   local why = too_large(job, comment)
   if why ~= nil then
      slurm.log_user(why)
      return UNAVAILABLE
   end
   local odd = odd_split(job, comment)
   if odd ~= nil then
      slurm.log_user(odd)
      if REJECT_ODD then
         return slurm.ERROR
      end
   end
   job.requeue = 1
   job.admin_comment = note .. bind(job, lease, comment) .. place_of(job)
   return slurm.SUCCESS
end

-- The error code for a change of a job that was refused at its submission; nil if the change is possible. Administrators may put
-- single jobs on certain nodes.
local function refused_change(job, record, uid)
   local moved = job.partition ~= nil and job.partition ~= ""
   local partitions = moved and job.partition or record.partition
   local all, any = is_managed(partitions)
   local has_gpus = wants_gpus(job) or wants_gpus(record) or string.find(record.admin_comment or "", "gavel:", 1, true) ~= nil
   if not any or not has_gpus or lease_of(partitions) == nil then
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

-- Whether a waiting job depends on a lease; false on releases of Slurm that do not tell, such as 22.05.
local function is_bound(record, lease)
   return string.find(record.curr_dependency or "", "afterany:" .. lease .. "(", 1, true) ~= nil
end

-- Users may let their jobs wait longer, but not start them. A changed dependency still has the lease. A job that comes into these
-- partitions, or asks for GPUs for the first time or for another begin, begins a little later, unless it is known to depend on the
-- lease: by then, the driver has made it depend on it.
function slurm_job_modify(job, record, partitions, uid)
   local refused = refused_change(job, record, uid)
   if refused ~= nil then
      return refused
   end
   local moved = job.partition ~= nil and job.partition ~= ""
   local target = moved and job.partition or record.partition
   local noted = string.find(record.admin_comment or "", "gavel:", 1, true) ~= nil
   local has_gpus = noted or wants_gpus(job) or wants_gpus(record)
   if is_administrator(uid) or not has_gpus or not is_managed(target) or record.job_state % 256 ~= 0 then
      return slurm.SUCCESS
   end
   local lease, comment = lease_of(target)
   local begin = job.begin_time or 0
   if lease == nil then
      if is_blind() and (moved or begin ~= 0 or job.dependency ~= nil) then
         job.begin_time = math.max(begin, os.time() + BLIND_SECONDS)
      end
      return slurm.SUCCESS
   end
   if job.dependency ~= nil then
      if string.find(job.dependency, "?", 1, true) ~= nil then
         slurm.log_user("dependencies joined by ? are only possible at submission in partition " .. target)
         return slurm.ERROR
      end
      bind(job, lease, comment)
   elseif (moved or begin ~= 0 or (wants_gpus(job) and not noted)) and not is_bound(record, lease) then
      local from = string.find(record.admin_comment or "", ";begin=", 1, true) and seconds_of(comment) or GRACE_SECONDS
      job.begin_time = math.max(begin, os.time() + from)
   end
   return slurm.SUCCESS
end

return slurm.SUCCESS
